"""The largest entries of each row, without sorting the row.

A full `topk` of a 128k vocabulary costs as much as all other metrics together. The k largest entries lie in the k
groups with the largest maxima, so it is enough to look into those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: groups per wanted entry below which grouping no longer pays
_MIN_GROUPS_PER_ENTRY = 4
_GROUP = 16


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
    rows, n = x.shape
    k = min(k, n)
    groups = n // _GROUP
    if groups < _MIN_GROUPS_PER_ENTRY * k:
        values, ids = x.topk(k, dim=-1)
        return _lowest_id_first(x, values, ids)
    body, tail = x[:, : groups * _GROUP], x[:, groups * _GROUP :]
    maxima = body.reshape(rows, _GROUP, groups).amax(1)  # group g holds ids g, g + groups, g + 2 * groups, …
    best = maxima.topk(k, dim=-1, sorted=False).indices
    step = torch.arange(_GROUP, device=x.device).view(1, _GROUP, 1) * groups
    ids = (best.unsqueeze(1) + step).reshape(rows, -1)
    candidates = body.gather(-1, ids)
    if tail.shape[1]:
        candidates = torch.cat([candidates, tail], -1)
        last = torch.arange(groups * _GROUP, n, device=x.device).expand(rows, -1)
        ids = torch.cat([ids, last], -1)
    values, position = candidates.topk(k, dim=-1)
    return _lowest_id_first(x, values, ids.gather(-1, position))


def _lowest_id_first(x: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> Leaders:
    """`topk` breaks ties as it likes; argmax (and a greedy sampler) takes the lowest id."""
    if values.shape[1] > 1 and not bool((values[:, 0] == values[:, 1]).any()):
        return Leaders(values, ids)
    first = x.argmax(-1, keepdim=True)
    ids = ids.clone()
    held = (ids == first).int().argmax(-1, keepdim=True)  # where argmax stands now, 0 if it fell off the list
    ids.scatter_(-1, held, ids[:, :1].clone())
    ids[:, :1] = first
    return Leaders(x.gather(-1, ids), ids)
