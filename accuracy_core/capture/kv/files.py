"""K and V of the target, out of the files of a replay, one layer at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accuracy_core.capture.kv.ranks import combine_ranks
from accuracy_core.capture.kv.sides import WHICH, KvSides, LayerKv, Which
from accuracy_core.capture.taps import TAP_PREFIX, kv_tensor_name
from accuracy_core.errors import InfrastructureError, InputMismatchError

#: (layer, which) -> (fp32, expected), (kv_heads, positions, head_dim) each
ReferenceKv = Callable[[int, Which], tuple[torch.Tensor, torch.Tensor]]
#: what attention was given, out of one rank's raw taps: (layer, which, raw taps) -> (positions, features) or None
GivenKv = Callable[[int, Which, Mapping[str, torch.Tensor]], "torch.Tensor | None"]
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class TargetFiles:
    """Files of one replay, one per tensor-parallel rank in rank order, and what the engine says is not in them."""

    ranks: Sequence[str | Path]
    missing: Mapping[str, str] = field(default_factory=dict)


def target_layers(files: TargetFiles) -> list[int]:
    """Numbers of the layers that have K or V in the first rank's file, in order."""
    with _Opened(files) as opened:
        names = set(opened.ranks[0].keys())
    found = {int(match[1]) for name in names if (match := re.fullmatch(r"kv\.(\d+)\.(?:key|value)", name))}
    return sorted(found)


def layers_of(
    files: TargetFiles, layers: Sequence[int], reference: ReferenceKv, given: GivenKv | None = None
) -> Iterator[LayerKv]:
    """The three sides of each of `layers`. Raises InfrastructureError for a file that holds only half of a layer."""
    with _Opened(files) as opened:
        for layer in layers:
            made: dict[str, KvSides] = {}
            wrong: set[tuple[int, int]] = set()
            for which in WHICH:
                fp32, expected = reference(layer, which)
                target, disagreeing = _together(opened.parts(kv_tensor_name(layer, which)), fp32.shape[0])
                wrong |= set(disagreeing)
                handed = None if given is None else opened.given(given, layer, which, target)
                made[which] = KvSides(
                    fp32=fp32,
                    expected=expected,
                    target=target,
                    given=handed,
                    present=_present(files.missing.get(kv_tensor_name(layer, which), ""), target),
                )
            yield LayerKv(layer, made["key"], made["value"], tuple(sorted(wrong)))


def _together(parts: list[torch.Tensor], heads: int) -> tuple[torch.Tensor, tuple[tuple[int, int], ...]]:
    """All heads; where ranks do not add up to them, what there is: the comparison then names both shapes."""
    try:
        return combine_ranks(parts, heads)
    except InputMismatchError:
        if len({tuple(part.shape[1:]) for part in parts}) > 1:
            raise
        return torch.cat(parts), ()


def _present(text: str, target: torch.Tensor) -> torch.Tensor | None:
    """(positions,) bool from `not in the cache: positions 0-31, 40`; None where nothing is said to be missing."""
    if "positions" not in text:
        return None
    here = torch.ones(target.shape[1], dtype=torch.bool)
    for first, last in _RANGE.findall(text.partition("positions")[2]):
        here[int(first) : int(last or first) + 1] = False
    return here


class _Opened:
    """The open files of a replay."""

    def __init__(self, files: TargetFiles) -> None:
        self._files = files
        self._exits = ExitStack()
        self.ranks: list[Any] = []

    def __enter__(self) -> _Opened:
        from safetensors import SafetensorError, safe_open

        try:
            self.ranks = [self._exits.enter_context(safe_open(str(path), "pt")) for path in self._files.ranks]
        except (SafetensorError, OSError) as error:
            raise InfrastructureError(f"the engine's captured tensors cannot be read: {error}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        self._exits.close()

    def parts(self, name: str) -> list[torch.Tensor]:
        from safetensors import SafetensorError

        try:
            return [rank.get_tensor(name) for rank in self.ranks]
        except SafetensorError as error:
            raise InfrastructureError(f"the engine's captures lack {name}: {error}") from error

    def given(self, ask: GivenKv, layer: int, which: Which, target: torch.Tensor) -> torch.Tensor | None:
        """(kv_heads, positions, head_dim) from every rank's taps; None when one has none."""
        parts = []
        for rank in self.ranks:
            raw = _LazyTaps(rank)
            rows = ask(layer, which, raw)
            if rows is None or rows.shape[1] % target.shape[2]:
                return None
            parts.append(rows.unflatten(1, (-1, target.shape[2])).transpose(0, 1))
        whole, _ = _together(parts, target.shape[0])
        return whole if whole.shape == target.shape else None


class _LazyTaps(Mapping[str, torch.Tensor]):
    """Raw tap -> rows, read when asked for."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank
        self._names = {name.removeprefix(TAP_PREFIX) for name in rank.keys() if name.startswith(TAP_PREFIX)}  # noqa: SIM118

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        rows: torch.Tensor = self._rank.get_tensor(TAP_PREFIX + name)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
