"""What module tensors and KV caches say: the places they name, and the facts for the triage tree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.evidence import KV, TENSORS, Evidence
from accuracy_core.prompts.triage_tree import Fact, TriageTree
from accuracy_core.schemas import DivergentModule, KvPattern, KvResult, Phase, TensorCompareResult

#: patterns that the write into the cache leaves; others are made before it
_WRITE_PATTERNS = {
    KvPattern.ONE_SLOT,
    KvPattern.SHIFTED,
    KvPattern.FROM_BLOCK,
    KvPattern.HEADS,
    KvPattern.SCALE,
    KvPattern.DECODE_ROWS,
}
#: kinds that come before the cache in their own layer
_BEFORE_CACHE = {"norm", "projection", "rope", "embedding"}


@dataclass(frozen=True)
class TensorPlace:
    """First divergent module over the prompts; `prompt` is where `first` was found, `others` what else was named."""

    prompt: int
    first: DivergentModule
    phase: Phase
    others: dict[int, str]


@dataclass(frozen=True)
class KvFound:
    """KV result that speaks for the run."""

    prompt: int
    result: KvResult


def tensor_place(tensors: Mapping[int, TensorCompareResult]) -> TensorPlace | None:
    """The module that most prompts name first; locally found ones before others, then the earlier module."""
    found = {
        index: (result, result.first_divergent)
        for index, result in tensors.items()
        if result.first_divergent is not None
    }
    if not found:
        return None
    votes = Counter(first.module for _, first in found.values())

    def rank(index: int) -> tuple[bool, int, int, int]:
        result, first = found[index]
        return not first.local, -votes[first.module], _order(result, first.module), index

    best = min(found, key=rank)
    result, first = found[best]
    others = {index: one.module for index, (_, one) in found.items() if one.module != first.module}
    return TensorPlace(best, first, result.phase if result.phase is not Phase.NONE else first.phase, others)


def _order(result: TensorCompareResult, module: str) -> int:
    return min((row.order for row in result.modules if row.module == module), default=2**31)


def kv_found(kv: Mapping[int, KvResult]) -> KvFound | None:
    """The result that speaks for the run: a cache that is itself at fault, then the pattern that most failing prompts
    show. None when nothing was measured."""
    measured = {index: result for index, result in kv.items() if result.verdict is not None}
    bad = {index: result for index, result in measured.items() if result.verdict is not Verdict.PASS}
    if not bad:
        return KvFound(min(measured), measured[min(measured)]) if measured else None
    votes = Counter(result.pattern for result in bad.values())
    best = min(bad, key=lambda at: (not bad[at].cache_fault, -votes[bad[at].pattern], -_worst(bad[at]), at))
    return KvFound(best, bad[best])


def _worst(result: KvResult) -> float:
    return max((head.l2_ratio for head in result.heads if not math.isnan(head.l2_ratio)), default=0.0)


def module_facts(tree: TriageTree, evidence: Evidence) -> dict[str, Fact]:
    """Facts of the groups `module` and `kv`. What was not asked for has no fact: its branch stays dark."""
    facts: dict[str, Fact] = {}
    place, kv = tensor_place(evidence.tensors), kv_found(evidence.kv)
    if TENSORS in evidence.not_measured:
        facts["tensors"] = "not_measured"
    elif any(result.verdict is not None for result in evidence.tensors.values()):
        facts |= {"tensors": "measured", "module_found": place is not None}
    if place is not None:
        first = place.first
        facts |= {
            "module": first.module,
            "module_kind": tree.kind_of(first.module),
            "module_local": first.local,
            "module_ratio": first.ratio,
            "module_phase": place.phase.value,
        }
        if first.layer is not None:
            facts["module_layer"] = float(first.layer)
    if KV in evidence.not_measured:
        facts["kv"] = "not_measured"
    elif kv is not None:
        bad = kv.result.verdict is not Verdict.PASS
        facts |= {
            "kv": "measured",
            "kv_bad": bad,
            "kv_pattern": kv.result.pattern.value,
            "kv_at_fault": bad and cache_at_fault(tree, place, kv.result),
        }
        if kv.result.first_bad is not None:
            facts["kv_layer"] = float(kv.result.first_bad.layer)
        facts["kv_worst_ratio"] = _worst(kv.result)
    return facts


def cache_at_fault(tree: TriageTree, place: TensorPlace | None, kv: KvResult) -> bool:
    """Were keys and values right before they were written?

    Told by what attention was given where that was recorded; else by the pattern, unless a module in front of the cache
    was found wrong.
    """
    if kv.cache_fault is not None:
        return kv.cache_fault
    if kv.pattern not in _WRITE_PATTERNS:
        return False
    if place is None:
        return True
    kind = tree.kind_of(place.first.module)
    if place.first.layer is None:  # outside the layers: in front of all of them, or behind
        return kind != "embedding"
    if kv.first_bad is not None and place.first.layer != kv.first_bad.layer:
        return place.first.layer > kv.first_bad.layer
    return kind not in _BEFORE_CACHE
