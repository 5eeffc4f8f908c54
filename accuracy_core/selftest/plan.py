"""Which faults are tried on which architectures, and how many clean runs stand beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS
from accuracy_core.models.architectures import ARCHITECTURES, architecture, architecture_config
from accuracy_core.models.resolve import embedded_model

EngineName = Literal["transformers", "vllm"]

#: vLLM computes other logits than Hugging Face for this architecture without any fault: its runs are not clean
KNOWN_DIFFERENT = {"vllm": ("deepseek-v2",), "transformers": ()}
#: tokens per KV block in vLLM: the smallest that its CPU kernels take, so that prompts reach over a block's end
BLOCK_SIZE = 32
CLEAN_SEEDS = 5
QUICK_CLEAN_SEEDS = 3
QUICK_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "vllm": ("embedded", "qwen2"),
    "transformers": ("embedded", "gemma2"),
}
#: a fault of every kind; what a quick run tries where it applies
QUICK_FAULTS = (
    "rope-theta", "position-offset", "attention-scale", "causal-mask-shift", "gqa-mapping", "norm-eps",
    "qkv-bias-dropped", "gate-up-swapped", "all-reduce-missing", "mlp-scale", "nan-module", "kv-slot",
    "kv-block-stride", "stale-prefix-cache", "kv-scale", "head-rows-swapped", "padded-vocabulary-wins", "double-bos",
    "sampler-default", "logit-softcap-missing", "embedding-scale-missing",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One run. `fault` None: a clean one. `seed` chooses the prompts; `strength` None: the fault's own."""

    architecture: str
    fault: str | None = None
    seed: int = 0
    strength: float | None = None


@dataclass(frozen=True)
class Plan:
    """`skipped`: fault -> architecture -> why it cannot have it."""

    engine: EngineName
    cases: list[Case]
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def architectures(self) -> list[str]:
        return list(dict.fromkeys(case.architecture for case in self.cases))

    def of(self, name: str) -> list[Case]:
        """The cases of one architecture: clean ones first, so that a fault that lingers is not taken for noise."""
        cases = [case for case in self.cases if case.architecture == name]
        return sorted(cases, key=lambda case: case.fault is not None)


def config_of(name: str) -> dict[str, Any]:
    """config.json of architecture `name`, without making its checkpoint."""
    if architecture(name).trained:
        return dict(json.loads((embedded_model() / "config.json").read_text(encoding="utf-8")))
    return dict(json.loads(architecture_config(name).to_json_string(use_diff=False)))


def make_plan(
    engine: EngineName = "transformers",
    *,
    quick: bool = False,
    faults: Sequence[str] = (),
    architectures: Sequence[str] = (),
    clean_seeds: int | None = None,
) -> Plan:
    """Every chosen fault on every chosen architecture that can have it, and `clean_seeds` clean runs of each.

    Empty choices mean all of them (of the quick selection with `quick`). Raises ConfigurationError for unknown names,
    for faults that no prompt analysis could show, and when nothing is left to run.
    """
    for name in faults:
        if FAULTS[name].judged_by != "triage":
            raise ConfigurationError(
                f"fault {name!r} does nothing while one request runs at a time, as in a selftest",
                fix="leave it out: it is for the check of engine consistency",
            )
    for name in architectures:
        architecture(name)
    known = [name for name in ARCHITECTURES if name not in KNOWN_DIFFERENT[engine]]
    chosen = list(architectures) or (list(QUICK_ARCHITECTURES[engine]) if quick else known)
    in_triage = [name for name in FAULTS if FAULTS[name].judged_by == "triage"]
    wanted = list(faults) or (list(QUICK_FAULTS) if quick else in_triage)
    seeds = clean_seeds if clean_seeds is not None else QUICK_CLEAN_SEEDS if quick else CLEAN_SEEDS
    cases = [Case(name, seed=seed) for name in chosen for seed in range(seeds)]
    skipped: dict[str, dict[str, str]] = {}
    for name in chosen:
        config = config_of(name)
        for fault in wanted:
            reason = FAULTS[fault].why_not(config, engine)
            if reason:
                skipped.setdefault(fault, {})[name] = reason
            else:
                cases.append(Case(name, fault))
    if not cases:
        raise ConfigurationError(
            "nothing is left to run: no chosen fault applies to a chosen architecture",
            fix="; ".join(sorted({reason for reasons in skipped.values() for reason in reasons.values()})),
        )
    return Plan(engine, cases, skipped)
