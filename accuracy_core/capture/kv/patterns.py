"""How the bad rows of one layer lie, and what that says about the fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from accuracy_core.capture.kv.explain import Moved, common_factor, moved_rows, swapped_heads, unwritten
from accuracy_core.capture.kv.limits import KvLimits
from accuracy_core.capture.kv.sides import KvSides, Which
from accuracy_core.schemas import KvPattern, KvPlace

#: block sizes that engines use, tried where the engine does not tell its own
_USUAL_BLOCKS = (128, 64, 32, 16)


@dataclass(frozen=True)
class Found:
    """`rows` (heads, positions) bool: what the pattern covers; `written` (positions,) int64: the token from
    whose step on a position is wrong, its own or a later one whose values it holds; `place`: the first row to be wrong.
    `certain`: the values themselves prove that the cache holds the wrong rows, whatever the size of the error."""

    pattern: KvPattern
    place: KvPlace
    rows: torch.Tensor
    written: torch.Tensor
    certain: bool = False
    evidence: list[str] = field(default_factory=list)


def recognise(
    layer: int,
    which: Which,
    sides: KvSides,
    rows: torch.Tensor,
    *,
    prompt_length: int,
    block_size: int | None,
    limits: KvLimits,
) -> Found:
    """Name the pattern of the bad `rows` (heads, positions) bool of a layer's K or V; at least one is set."""
    here = f"layer {layer} {which}"
    heads, positions = rows.any(1), rows.any(0).nonzero().flatten()
    target, fp32 = sides.target.float(), sides.fp32.float()
    present = sides.present if sides.present is not None else torch.ones(rows.shape[1], dtype=torch.bool)

    order = torch.arange(rows.shape[1])

    def found(
        pattern: KvPattern,
        *evidence: str,
        certain: bool = False,
        at: torch.Tensor | None = None,
        written: torch.Tensor | None = None,
    ) -> Found:
        covered, steps = rows if at is None else at, order if written is None else written
        return Found(pattern, _first(layer, which, covered, steps), covered, steps, certain, list(evidence))

    broken = rows & ~target.isfinite().all(-1)
    if bool(broken.any()):
        where = _first(layer, which, broken, order)
        text = f"{here}: NaN or infinite first at head {where.head}, position {where.position}"
        return found(KvPattern.NONFINITE, f"{text} ({int(broken.sum())} rows)", at=broken)

    empty = rows & unwritten(target, fp32)
    if bool(empty.all(0)[positions].all()) or torch.equal(empty, rows):
        return _unwritten(found, here, positions, prompt_length, block_size, rows.shape[1])

    filled = positions[~(empty | ~rows).all(0)[positions]]
    moved = moved_rows(target, fp32, heads, filled, limits.match_share)
    if moved is not None and len(moved.source) >= limits.pattern_share * moved.looked_at:
        covered = empty.any(0)
        covered[[*moved.source, *filled[moved.looked_at :].tolist()]] = True
        return _moved(found, here, moved, rows & covered, block_size, limits)

    bad_heads = [h for h in heads.nonzero().flatten().tolist() if _whole(rows[h], present, limits)]
    swaps = swapped_heads(target, fp32, bad_heads, present, limits.match_share) if bad_heads else {}
    if swaps:
        pairs = ", ".join(f"head {head} holds head {other}" for head, other in swaps.items())
        return found(KvPattern.HEADS, f"{here}: {pairs}")

    factor, explained = common_factor(target, fp32, rows)
    if explained >= limits.match_share:
        text = f"{here}: values are {factor:.4g} times the reference's ({explained:.0%} of the squared error explained)"
        return found(KvPattern.SCALE, text)

    boundary = _boundary(positions, present, prompt_length, block_size, limits)
    if boundary is not None:
        start, size = boundary
        return found(
            KvPattern.FROM_BLOCK, f"{here}: wrong from position {start} on, the start of block {start // size}"
        )
    if bad_heads and len(bad_heads) == int(heads.sum()) < rows.shape[0]:
        listed = ", ".join(map(str, bad_heads))
        return found(KvPattern.HEADS, f"{here}: all of head {listed}, the other heads are right")
    if len(positions) == 1:
        return found(KvPattern.ONE_SLOT, f"{here}: position {int(positions[0])} alone is wrong")
    if bool((positions >= prompt_length).all()):
        text = f"{here}: only rows that decode steps wrote, from position {int(positions[0])} on"
        return found(KvPattern.DECODE_ROWS, text)
    shown = f"{len(positions)} of {int(present.sum())} positions in {int(heads.sum())} of {rows.shape[0]} heads"
    return found(KvPattern.SPREAD, f"{here}: {shown}, in no order: wrong before it was cached")


def _first(layer: int, which: Which, rows: torch.Tensor, written: torch.Tensor) -> KvPlace:
    """Written first, then lowest position, then lowest head."""
    positions = rows.any(0).nonzero().flatten()
    position = int(positions[written[positions].argmin()])  # the first of equals
    return KvPlace(layer=layer, head=int(rows[:, position].nonzero()[0]), position=position, which=which)


def _unwritten(
    found: object, here: str, positions: torch.Tensor, prompt_length: int, block_size: int | None, total: int
) -> Found:
    assert callable(found)
    first = int(positions[0])
    pattern = KvPattern.ONE_SLOT
    if len(positions) > 1:
        pattern = KvPattern.DECODE_ROWS if first >= prompt_length else KvPattern.SPREAD
        if block_size and first and first % block_size == 0 and len(positions) == total - first:
            pattern = KvPattern.FROM_BLOCK
    result: Found = found(
        pattern, f"{here}: {len(positions)} positions from {first} on hold zeros: never written", certain=True
    )
    return result


def _moved(
    found: object,
    here: str,
    moved: Moved,
    rows: torch.Tensor,
    block_size: int | None,
    limits: KvLimits,
) -> Found:
    assert callable(found)
    first = min(moved.source)
    written = torch.arange(rows.shape[1])
    for position, source in moved.source.items():
        written[position] = max(position, source)  # wrong once both should have been written
    examples = ", ".join(f"position {p} holds {q}" for p, q in sorted(moved.source.items())[:4])
    text = f"{here}: {examples}"
    offsets = {q - p for p, q in moved.source.items()}
    if int(rows.any(0).sum()) == 1:
        result: Found = found(KvPattern.ONE_SLOT, text, certain=True, at=rows, written=written)
    elif block_size and all(offset % block_size == 0 for offset in offsets):
        blocks = f"block {first // block_size} holds block {moved.source[first] // block_size}"
        result = found(KvPattern.FROM_BLOCK, f"{text}: {blocks}", certain=True, at=rows, written=written)
    elif _strides(moved, rows, block_size, limits):
        text += ": blocks lie closer or further apart than they should"
        result = found(KvPattern.FROM_BLOCK, text, certain=True, at=rows, written=written)
    elif moved.share >= limits.pattern_share:
        result = found(
            KvPattern.SHIFTED, f"{text}: written {-moved.offset:+d} slots away", certain=True, at=rows, written=written
        )
    else:
        result = found(KvPattern.SHIFTED, f"{text}: rows of other positions", certain=True, at=rows, written=written)
    return result


def _strides(moved: Moved, rows: torch.Tensor, block_size: int | None, limits: KvLimits) -> bool:
    """Rows are displaced by more in every later block, or all of them from the place on where the second block lies."""
    positions = sorted(moved.source)
    offsets = [moved.source[position] - position for position in positions]
    steps = [abs(offset) for offset in offsets]
    sizes = [block_size] if block_size else list(_USUAL_BLOCKS)
    rising = sum(a <= b for a, b in pairwise(steps))
    if len(set(offsets)) > 2 and min(offsets) * max(offsets) > 0 and rising >= limits.pattern_share * len(steps):
        return True
    first, source = positions[0], moved.source[positions[0]]
    to_the_end = len(positions) >= limits.pattern_share * (rows.shape[1] - first)
    return source > first and to_the_end and any(source % size == 0 for size in sizes)


def _whole(head: torch.Tensor, present: torch.Tensor, limits: KvLimits) -> bool:
    """Bad at nearly all positions that are present."""
    return float(head[present].double().mean()) >= limits.pattern_share if bool(present.any()) else False


def _boundary(
    positions: torch.Tensor, present: torch.Tensor, prompt_length: int, block_size: int | None, limits: KvLimits
) -> tuple[int, int] | None:
    """(first position, block size) when nearly everything from a block boundary on is bad and nothing before it."""
    first = int(positions[0])
    after = int(present[first:].sum())
    if first == 0 or after < 2 or len(positions) < limits.pattern_share * after:
        return None
    if first == prompt_length:  # decode starts there anyway
        return None
    if block_size:
        return (first, block_size) if first % block_size == 0 else None
    size = next((size for size in _USUAL_BLOCKS if first % size == 0), None)
    return None if size is None else (first, size)
