"""From bad rows to one statement: what is wrong, where first, and whether the cache itself is at fault."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from accuracy_core.capture.kv.judge import JudgedSide
from accuracy_core.capture.kv.limits import CACHE_DTYPES, KvLimits
from accuracy_core.capture.kv.patterns import Found, recognise
from accuracy_core.capture.kv.sides import WHICH, LayerKv, Which
from accuracy_core.schemas import GuardHit, KvPattern, KvPlace, Phase


@dataclass(frozen=True)
class FirstFault:
    """Pattern and place of the first fault; nothing found: pattern NONE and no place."""

    pattern: KvPattern = KvPattern.NONE
    place: KvPlace | None = None


@dataclass
class Diagnosis:
    """Looks at the layers in order and keeps the first that is wrong.

    With teacher forcing a fault can only spread to later layers, so the first bad layer is where it happened. Layers
    are still looked at after that until one proves a fault of the cache: jumps of the noise behind a router may come
    first.
    """

    prompt_length: int
    block_size: int | None
    cache_dtype: str
    limits: KvLimits
    found: FirstFault = field(default_factory=FirstFault)
    cache_fault: bool | None = None
    evidence: list[str] = field(default_factory=list)
    _early: bool = False
    _late: bool = False
    _count: int = 0
    _proof: GuardHit | None = None

    def at_shape(self, layer: int) -> None:
        """Shapes differ at `layer`: nothing can be compared from there on."""
        if self.found.place is None:
            self.found = FirstFault(KvPattern.NONE, KvPlace(layer=layer, which="key"))
            self.evidence.append(f"layer {layer}: shapes differ, it cannot be compared")

    def look(self, layer: LayerKv, judged: dict[Which, JudgedSide]) -> None:
        """Take in one layer."""
        if self.cache_fault:
            return
        bad = {which: side.bad_rows() for which, side in judged.items()}
        odd = {which: side.odd | bad[which] for which, side in judged.items()}
        first_time = self.found.place is None
        findings, certain = self._explained(layer, bad, odd)
        differs = any(side.wrong is not None and bool(side.wrong.any()) for side in judged.values())
        if not findings or not (certain or differs or first_time):
            return
        shown = min(findings.values(), key=lambda item: (_step(item), WHICH.index(item.place.which)))
        self.found = FirstFault(shown.pattern, shown.place)
        self.evidence = [text for item in findings.values() for text in item.evidence]
        known = all(side.wrong is not None for side in judged.values())
        self.cache_fault = self._judge(shown.pattern, certain, differs, known)
        steps = torch.cat([item.written[item.rows.any(0)] for item in findings.values()])
        self._early, self._late = bool((steps < self.prompt_length).any()), bool((steps >= self.prompt_length).any())
        self._count = max(int(item.rows.any(0).sum()) for item in findings.values())
        self._explain(layer.layer, differs, known)
        if certain:
            self._proof = self._certain_hit(shown)

    def _explained(
        self, layer: LayerKv, bad: dict[Which, torch.Tensor], odd: dict[Which, torch.Tensor]
    ) -> tuple[dict[Which, Found], bool]:
        """Patterns of the bad rows, and whether they prove a fault of the cache. Rows that are merely odd count where
        they prove one: behind a router the fault may be no larger than a jump of the noise."""
        findings = {which: self._recognise(layer, which, bad[which]) for which in WHICH if bool(bad[which].any())}
        if _agreed(findings) or all(torch.equal(bad[which], odd[which]) for which in WHICH):
            return findings, _agreed(findings)
        other = {which: self._recognise(layer, which, odd[which]) for which in WHICH if bool(odd[which].any())}
        return (other, True) if _agreed(other) else (findings, False)

    def _recognise(self, layer: LayerKv, which: Which, rows: torch.Tensor) -> Found:
        return recognise(
            layer.layer,
            which,
            layer.side(which),
            rows,
            prompt_length=self.prompt_length,
            block_size=self.block_size,
            limits=self.limits,
        )

    def _judge(self, pattern: KvPattern, certain: bool, differs: bool, known: bool) -> bool | None:
        if certain or differs:
            return True
        if known:
            return False
        if pattern is KvPattern.FROM_BLOCK or (pattern is KvPattern.SCALE and self.cache_dtype in CACHE_DTYPES):
            return True
        return False if pattern is KvPattern.SPREAD else None

    def _explain(self, layer: int, differs: bool, known: bool) -> None:
        if differs:
            self.evidence.append(f"layer {layer}: the cache does not hold what attention was given to cache")
        elif known:
            self.evidence.append(
                f"layer {layer}: the cache holds what attention was given: "
                + ("rows are in the wrong place" if self.cache_fault else "it was wrong before it was cached")
            )

    def _certain_hit(self, shown: Found) -> GuardHit:
        place = shown.place
        position = place.position if place.position is not None else 0
        return GuardHit(
            guard="kv_misplaced",
            prompt=-1,
            token=position - self.prompt_length if position >= self.prompt_length else -1,
            value=float(self._count),
            limit=0.0,
            detail="; ".join(shown.evidence),
        )

    def guards(self, prompt: int) -> list[GuardHit]:
        """The proof of a misplaced row, if there is one."""
        return [] if self._proof is None else [self._proof.model_copy(update={"prompt": prompt})]

    def phase(self) -> Phase:
        """Whether prefill, decode steps or both wrote the bad rows of the first bad layer."""
        return {(True, True): Phase.BOTH, (True, False): Phase.PREFILL, (False, True): Phase.DECODE}.get(
            (self._early, self._late), Phase.NONE
        )


def _step(found: Found) -> int:
    return int(found.written[found.place.position]) if found.place.position is not None else 0


def _agreed(findings: dict[Which, Found]) -> bool:
    """Every side that is off proves it: equal tokens have equal V in the first layer, so V alone is no proof."""
    return bool(findings) and all(item.certain for item in findings.values())
