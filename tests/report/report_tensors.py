"""Results of tensor compare and KV compare for the run directories, with plausible numbers."""

from __future__ import annotations

import random

from accuracy_core.outcome import Verdict
from accuracy_core.schemas import (
    Culprit,
    DivergentModule,
    KvHeadMetrics,
    KvPattern,
    KvPlace,
    KvResult,
    ModuleMetrics,
    Phase,
    ReplacementTrial,
    TensorCompareResult,
)

_PER_LAYER = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.query", "self_attn.key",
    "self_attn.attn", "self_attn.o_proj", "residual_mid", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
    "mlp.act", "mlp.down_proj", "",
)  # fmt: skip


def taps(layers: int = 4) -> list[str]:
    """Canonical taps in order of execution."""
    inside = [f"model.layers.{layer}.{name}".rstrip(".") for layer in range(layers) for name in _PER_LAYER]
    return ["model.embed_tokens", *inside, "model.norm", "lm_head"]


def layer_of(tap: str) -> int | None:
    return next((int(part) for part in tap.split(".") if part.isdigit()), None)


def tensor_result(
    index: int, module: str | None, phase: Phase = Phase.BOTH, *, prompt: int = 12, positions: int = 27
) -> TensorCompareResult:
    """`module` (a tap) is wrong in `phase`; what follows it carries the error on, right in itself."""
    order = taps()
    at = order.index(module) if module else len(order)
    phases = (Phase.PREFILL, Phase.DECODE)
    rows = [_metrics(tap, place, one, at, phase) for one in phases for place, tap in enumerate(order)]
    rng = random.Random(index)
    first = None
    if module:
        first = DivergentModule(
            module=module, layer=layer_of(module), position=prompt + 1 if phase is Phase.DECODE else 3, ratio=18.6,
            phase=Phase.DECODE if phase is Phase.DECODE else Phase.PREFILL, local=True,
            evidence="own error 0.0512, dtype noise 0.00275; every module in front of it within 1.4×",
        )  # fmt: skip
    streams = [tap for tap in order if tap.rsplit(".", 1)[-1].isdigit()]
    return TensorCompareResult(
        index=index, verdict=Verdict.FAIL if module else Verdict.PASS, phase=phase if module else Phase.NONE,
        prompt_length=prompt, positions=positions, modules=rows, first_divergent=first,
        progression={
            tap: [
                0.003 * (depth + 1) ** 0.5 * rng.uniform(0.7, 1.4)
                * (12.0 if order.index(tap) >= at and _off(p, prompt, phase) else 1.0)
                for p in range(positions)
            ]
            for depth, tap in enumerate(streams)
        },
        missing={"model.layers.0.self_attn.q_norm": "this model has no such module"},
    )  # fmt: skip


def _off(position: int, prompt: int, phase: Phase) -> bool:
    return phase is not Phase.DECODE or position > prompt


def _metrics(tap: str, place: int, one: Phase, at: int, phase: Phase) -> ModuleMetrics:
    rng = random.Random(f"{tap}/{one}")
    here = phase is Phase.BOTH or phase is one
    wrong, behind = place == at and here, place >= at and here
    noise = 0.0028 * rng.uniform(0.8, 1.2)
    base = 0.002 * (1 + place) ** 0.5 * rng.uniform(0.9, 1.1)
    ratio = 18.6 * rng.uniform(0.9, 1.0) if wrong else rng.uniform(0.75, 1.25)
    total = 9 * rng.uniform(0.8, 1.2) if behind else rng.uniform(0.8, 1.2)
    return ModuleMetrics(
        module=tap, order=place, layer=layer_of(tap), phase=one, l2=base * total,
        rows=12 if one is Phase.PREFILL else 15,
        base_l2=base, l2_ratio=total, linf_ratio=total * 1.1, bc=0.4 if behind else 0.997, local_l2=noise * ratio,
        local_base_l2=noise, local_ratio=ratio, worst_position=3, verdict=Verdict.FAIL if wrong else Verdict.PASS,
    )  # fmt: skip


def kv_result(index: int, pattern: KvPattern, *, layers: int = 4, heads: int = 2, positions: int = 27) -> KvResult:
    bad = pattern is not KvPattern.NONE
    rng = random.Random(index)
    return KvResult(
        index=index, verdict=Verdict.FAIL if bad else Verdict.PASS, phase=Phase.DECODE if bad else Phase.NONE,
        prompt_length=12, positions=positions, block_size=32, pattern=pattern,
        first_bad=KvPlace(layer=1, head=0, position=13, which="key") if bad else None,
        evidence=["position 13 holds what belongs to position 14"] if bad else [],
        heads=[
            KvHeadMetrics(
                layer=layer, head=head, which=which, cosine=0.71 if bad and layer == 1 else 0.99999,
                l2_ratio=80.0 if bad and layer == 1 else rng.uniform(0.8, 1.2), linf_ratio=1.1, bc=0.995,
            )
            for layer in range(layers) for head in range(heads) for which in ("key", "value")
        ],
        position_ratio={
            which: [
                [60.0 if bad and layer == 1 and p > 12 else rng.uniform(0.7, 1.4) for p in range(positions)]
                for layer in range(layers)
            ]
            for which in ("key", "value")
        },
    )  # fmt: skip


def proven(culprit: Culprit, *, confirmed: bool | None = True) -> Culprit:
    """`culprit` as the replacement experiment would leave it."""
    if confirmed is None:
        return culprit.model_copy(update={"confirmation": "not possible: engine vllm cannot replace tensors"})
    output = ReplacementTrial(
        kind="output", module=str(culprit.module), prompt=culprit.prompt or 0, l2_before=12.4,
        l2_after=1.02 if confirmed else 12.1, guards_before=23, guards_after=0 if confirmed else 22,
        verdict_after=Verdict.PASS if confirmed else Verdict.FAIL, healed=confirmed,
    )  # fmt: skip
    inputs = output.model_copy(
        update={"kind": "inputs", "module": "model.layers.0", "l2_after": 12.2, "guards_after": 22, "healed": False}
    )
    return culprit.model_copy(
        update={
            "confirmed": confirmed,
            "trials": [output, inputs] if confirmed else [output],
            "confirmation": f"{culprit.module}: replaced, and the error {'vanishes' if confirmed else 'stays'}",
        }
    )
