"""Tensors inside a model as rows, one per token, and rows put in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accuracy_core.errors import InputMismatchError


@dataclass(frozen=True)
class TapValue:
    """Rows to put at a tap: positions `first_row` … get `rows` (n, features), in columns [start, stop) if given."""

    rows: torch.Tensor
    first_row: int = 0
    columns: tuple[int, int] | None = None


def as_rows(tensor: torch.Tensor, tokens: int, like: torch.Tensor | None = None) -> torch.Tensor:
    """(rows, features) view or copy of a tensor of one sequence; the last `tokens` rows are this forward's.

    Accepts (1, tokens, …), (tokens, …) and, of q/k norms, (1, heads, tokens, head_dim); `like` is a tensor of the same
    shape whose strides tell the two dimensions apart where they are equally long. A module that also runs over cached
    positions gives (1, more than tokens, features). Raises InputMismatchError otherwise.
    """
    if tensor.ndim >= 3 and tensor.shape[0] == 1:
        if head_first(tensor, tokens, like):
            return tensor[0].transpose(0, 1).reshape(tokens, -1)
        if tensor.shape[1] == tokens or (tensor.ndim == 3 and tensor.shape[1] > tokens):
            return tensor[0].reshape(tensor.shape[1], -1)
    if tensor.ndim >= 2 and tensor.shape[0] == tokens:
        return tensor.reshape(tokens, -1)
    raise InputMismatchError(f"a tensor of shape {tuple(tensor.shape)} has no rows for {tokens} tokens of one sequence")


def like_original(rows: torch.Tensor, original: torch.Tensor, tokens: int, like: torch.Tensor | None) -> torch.Tensor:
    """The inverse of `as_rows`: rows in the shape and dtype of `original`."""
    rows = rows.to(original.dtype)
    if original.ndim == 4 and original.shape[0] == 1 and head_first(original, tokens, like):
        heads, count, width = original.shape[1:]
        return rows.reshape(count, heads, width).transpose(0, 1).unsqueeze(0)
    return rows.reshape(original.shape)


def head_first(tensor: torch.Tensor, tokens: int, like: torch.Tensor | None) -> bool:
    """Whether (1, a, b, head_dim) is (1, heads, tokens, head_dim) and not (1, tokens, heads, head_dim)."""
    if tensor.ndim != 4 or tensor.shape[2] != tokens:
        return False
    if tensor.shape[1] != tokens:
        return True
    memory = tensor if like is None or like.shape != tensor.shape else like
    return memory.stride(2) > memory.stride(1)  # tokens are the outer dimension in memory


def put_rows(rows: torch.Tensor, values: Sequence[TapValue], first_position: int, tap: str) -> torch.Tensor:
    """A copy of `rows` (positions `first_position` …) with the given values in place; `rows` itself if none fall in.

    Values that are not finite are not put: what was computed stays.
    Raises InputMismatchError, naming both shapes, for values that do not fit.
    """
    last, result = first_position + rows.shape[0], None
    for value in values:
        start, stop = value.columns or (0, rows.shape[1])
        if value.rows.ndim != 2 or value.rows.shape[1] != stop - start or not 0 <= start < stop <= rows.shape[1]:
            raise InputMismatchError(
                f"{tap}: rows of shape {tuple(value.rows.shape)} do not fit columns {start}:{stop} of "
                f"{tuple(rows.shape)}"
            )
        begin, end = max(first_position, value.first_row), min(last, value.first_row + value.rows.shape[0])
        if begin >= end:
            continue
        if result is None:
            result = rows.clone()
        given = value.rows[begin - value.first_row : end - value.first_row].to(result.device, result.dtype)
        place = result[begin - first_position : end - first_position, start:stop]
        place.copy_(torch.where(torch.isfinite(given), given, place))
    return rows if result is None else result
