"""Cut digits are told from rounded ones and from modules that are wrong."""

from __future__ import annotations

import pytest
import torch

from accuracy_core.modules.closeness import closeness_three_way
from accuracy_core.modules.limits import limits
from accuracy_core.modules.rounding import digits_cut


def sides() -> tuple[torch.Tensor, torch.Tensor]:
    f = torch.randn(40_000, generator=torch.Generator().manual_seed(5))
    return f, f.to(torch.bfloat16)


def cut(f: torch.Tensor) -> torch.Tensor:
    return (f.view(torch.int32) & ~0xFFFF).view(torch.float32)


def found(actual: torch.Tensor) -> str:
    f, rounded = sides()
    judged = closeness_three_way(f, rounded, actual)
    return digits_cut([f], [rounded], [actual], judged, limits())


def test_half_a_unit_is_what_cutting_takes():
    f, _ = sides()
    assert not closeness_three_way(f, f.to(torch.bfloat16), cut(f)).passed
    assert "with 0.50 units in the last place" in found(cut(f))


@pytest.mark.parametrize(
    "change",
    [
        lambda f, rounded: rounded.float(),  # passes: nothing to find
        lambda f, rounded: cut(f) * 0.98,  # more than cutting can take
        lambda f, rounded: rounded.float() * 1.01,  # leans away from zero
        lambda f, rounded: rounded.float() + (rounded.float() - f) * torch.randn(len(f)),  # noise, no lean
        lambda f, rounded: torch.where(torch.arange(len(f)) == 7, torch.tensor(float("nan")), cut(f)),
        lambda f, rounded: torch.where(torch.arange(len(f)) == 7, f + 1, cut(f)),  # one wild value stays one
    ],
)
def test_nothing_else_is_excused(change):
    assert found(change(*sides())) == ""
