"""Hand-made results of tensor compare and KV compare, and plugins that leave them in a run directory."""

from __future__ import annotations

from accuracy_core.outcome import Verdict
from accuracy_core.prompts import PromptPlugin
from accuracy_core.schemas import (
    DivergentModule,
    KvPattern,
    KvPlace,
    KvResult,
    ModuleMetrics,
    Phase,
    PluginStatus,
    TensorCompareResult,
)

ORDER = [
    "model.embed_tokens", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.key", "model.layers.0.self_attn.attn", "model.layers.0.self_attn.o_proj",
    "model.layers.0.mlp.down_proj", "model.layers.0", "model.layers.1.self_attn.key", "model.layers.1.self_attn.attn",
    "model.layers.1.mlp.down_proj", "model.layers.1", "model.norm", "lm_head",
]  # fmt: skip


def layer(module: str) -> int | None:
    return next((int(part) for part in module.split(".") if part.isdigit()), None)


def tensors(
    module: str | None, *, index: int = 0, phase: Phase = Phase.PREFILL, local: bool = True, also: tuple[str, ...] = (),
    position: int | None = None, head: int | None = None,
) -> TensorCompareResult:  # fmt: skip
    """Result in which `module` (and later `also`) are off from `phase` on; None: every module is fine."""
    bad = {module, *also} - {None}
    rows = [
        ModuleMetrics(
            module=name, order=order, layer=layer(name), phase=one, rows=4, l2=0.01, base_l2=0.01, l2_ratio=1.0,
            local_l2=0.2 if name in bad else 0.01, local_base_l2=0.01, local_ratio=20.0 if name in bad else 1.0,
            verdict=Verdict.FAIL if name in bad else Verdict.PASS,
        )
        for one in (Phase.PREFILL, Phase.DECODE)
        for order, name in enumerate(ORDER)
    ]  # fmt: skip
    first = module and DivergentModule(
        module=module, layer=layer(module), head=head, position=position, ratio=20.0, local=local,
        phase=Phase.DECODE if phase is Phase.DECODE else Phase.PREFILL,
    )  # fmt: skip
    return TensorCompareResult(
        index=index, verdict=Verdict.FAIL if module else Verdict.PASS, phase=phase if module else Phase.NONE,
        modules=rows, first_divergent=first or None, prompt_length=4, positions=8,
    )  # fmt: skip


def kv(
    pattern: KvPattern = KvPattern.NONE, *, index: int = 0, at: int = 1, head: int | None = 0, position: int | None = 5
) -> KvResult:
    bad = pattern is not KvPattern.NONE
    return KvResult(
        index=index, verdict=Verdict.FAIL if bad else Verdict.PASS, phase=Phase.DECODE if bad else Phase.NONE,
        pattern=pattern, positions=8, prompt_length=4,
        first_bad=KvPlace(layer=at, head=head, position=position, which="key") if bad else None,
    )  # fmt: skip


class Witness(PromptPlugin):
    """Writes `make(prompt number)` for every prompt it is given, as the plugin `plugin` would; or fails."""

    def __init__(self, name, make, *, fail=None):
        self.name, self.make, self.fail, self.contexts = name, make, fail, []

    def run(self, ctx):
        self.contexts.append(ctx)
        if self.fail is not None:
            raise self.fail
        made = {prompt.index: self.make(prompt.index) for prompt in ctx.prepared}
        verdicts = [result.verdict for result in made.values()]
        worst = Verdict.FAIL if Verdict.FAIL in verdicts else Verdict.PASS
        status = PluginStatus(
            plugin=self.name, verdict=worst, per_prompt={str(index): one.verdict for index, one in made.items()}
        )
        return {"passed": worst is Verdict.PASS, "status": status, "made": made}

    def save(self, ctx, results):
        for index, result in results["made"].items():
            ctx.output_dir.write(ctx.output_dir.prompt_result(index, self.name), result)
