"""The largest entries of each row, without sorting the row.

A full `topk` of a 128k vocabulary costs as much as all other metrics together. But the k largest entries lie in the k
groups with the largest maxima, whatever the groups are; so groups are formed, all but k of them dropped, and what is
left is grouped again until it is short.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_GROUPS_PER_ENTRY = 4
_FEWEST_GROUPS = 4_000  # `topk` of this many is as good as free


@dataclass(frozen=True)
class Leaders:
    """`values` and `ids`, both (rows, k), descending by value. The first id is argmax: the lowest id among ties."""

    values: torch.Tensor
    ids: torch.Tensor

    @property
    def argmax(self) -> torch.Tensor:
        """(rows,) ids of the largest entries."""
        return self.ids[:, 0]


def leaders(x: torch.Tensor, k: int) -> Leaders:
    """The `k` largest entries of each row of `x` (rows, n), free of NaN; `k` is cut to n.

    Exact, also for ties: where more entries tie than fit, any of them are returned, but the first is argmax.
    """
    values, ids = best_entries(x, k)
    values, at = values.topk(values.shape[1], dim=-1)
    return lowest_id_first(x, values, ids.gather(-1, at))


def best_entries(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids (rows, k) of the `k` largest entries of each row, in no order."""
    k = min(k, x.shape[1])
    values, ids = x, None
    groups = max(_GROUPS_PER_ENTRY * k, _FEWEST_GROUPS)
    while values.shape[1] >= 2 * groups:
        values, ids = _keep_best_groups(values, ids, k, groups)
        groups = _GROUPS_PER_ENTRY * k
    values, at = values.topk(k, dim=-1, sorted=False)
    return values, at if ids is None else ids.gather(-1, at)


def _keep_best_groups(
    x: torch.Tensor, ids: torch.Tensor | None, k: int, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries and ids of the `k` groups with the largest maxima; entries that fit into no group are kept too."""
    rows, n = x.shape
    size = n // groups
    groups = n // size  # as many as the size allows: hardly any entry is left over
    maxima = x[:, : size * groups].reshape(rows, size, groups).amax(1)  # group g: entries g, g + groups, …
    best = maxima.topk(k, dim=-1, sorted=False).indices
    step = torch.arange(size, device=x.device).view(1, size, 1) * groups
    at = (best.unsqueeze(1) + step).reshape(rows, -1)
    if size * groups < n:
        at = torch.cat([at, torch.arange(size * groups, n, device=x.device).expand(rows, -1)], -1)
    return x.gather(-1, at), at if ids is None else ids.gather(-1, at)


def lowest_id_first(x: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> Leaders:
    """Leaders of `x` from descending `values` and `ids`, argmax first: `topk` breaks ties as it likes."""
    if values.shape[1] > 1 and not bool((values[:, 0] == values[:, 1]).any()):
        return Leaders(values, ids)
    first = x.argmax(-1, keepdim=True)
    ids = ids.clone()
    held = (ids == first).int().argmax(-1, keepdim=True)  # where argmax stands now, 0 if it fell off the list
    ids.scatter_(-1, held, ids[:, :1].clone())
    ids[:, :1] = first
    return Leaders(x.gather(-1, ids), ids)
