"""Can a gate fail at all, and does it let right implementations through?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from accuracy_core.calibration.material import Ids, Rows, forward_rows
from accuracy_core.calibration.random_model import decoder_layers
from accuracy_core.calibration.relative_error import rows_error
from accuracy_core.calibration.tolerance import LEAST_DISCRIMINATION, LEAST_MARGIN, discrimination, margin
from accuracy_core.schemas.base import Part


class Discrimination(Part):
    """`wrong`: implementation -> error over the tolerance. `right`: variant -> tolerance over its error."""

    tolerance: float
    wrong: dict[str, float]
    right: dict[str, float]
    problems: list[str]


@dataclass(frozen=True)
class WrongImplementation:
    """Inside `broken(model)`, the model computes something else than the checkpoint says."""

    name: str
    broken: Callable[[Any], Any]


@contextmanager
def _without_mlp(model: Any) -> Iterator[None]:
    handle = _block(model, "mlp").register_forward_hook(
        lambda _m, _a, out: (torch.zeros_like(out[0]), *out[1:]) if isinstance(out, tuple) else torch.zeros_like(out)
    )
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _without_attention(model: Any) -> Iterator[None]:
    handle = _block(model, "self_attn").register_forward_hook(lambda _m, _a, out: (torch.zeros_like(out[0]), *out[1:]))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _shifted_tokens(model: Any) -> Iterator[None]:
    """Every position reads its left neighbour's embedding."""
    handle = model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out.roll(1, dims=1))
    try:
        yield
    finally:
        handle.remove()


WRONG = tuple(
    WrongImplementation(name, broken)
    for name, broken in (
        ("one MLP left out", _without_mlp),
        ("one attention left out", _without_attention),
        ("positions off by one", _shifted_tokens),
    )
)


def measure_discrimination(
    model: Any,
    ids: Sequence[Ids],
    rows: int,
    reference: Rows,
    right: Mapping[str, float],
    tolerance: float,
    wrong: Sequence[WrongImplementation] = WRONG,
) -> Discrimination:
    """`reference`: FP32 rows; `right`: variant -> relative error. A gate below 10 or above 1.5 has a problem."""
    over = {}
    for item in wrong:
        with item.broken(model):
            over[item.name] = discrimination(rows_error(forward_rows(model, ids, rows), reference), tolerance)
    under = {name: margin(error, tolerance) for name, error in right.items()}
    problems = [
        f"{name} is only {ratio:.1f} times over the tolerance, wanted {LEAST_DISCRIMINATION:g}"
        for name, ratio in over.items()
        if ratio < LEAST_DISCRIMINATION
    ]
    problems += [
        f"the right variant {name!r} is only {ratio:.2f} times under the tolerance, wanted {LEAST_MARGIN:g}"
        for name, ratio in under.items()
        if ratio < LEAST_MARGIN
    ]
    return Discrimination(tolerance=tolerance, wrong=over, right=under, problems=problems)


def _block(model: Any, name: str) -> Any:
    """Attention or MLP of the middle layer."""
    layers = decoder_layers(model)
    return getattr(layers[len(layers) // 2], name)
