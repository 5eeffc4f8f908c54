"""The unfused reference inside one Python operator: what it launches inside is counted all the same."""

import torch

from accuracy_core.grading import unfused
from accuracy_core.grading.shape import KvCache


def build(config, weights):
    inner = unfused.build(config, weights)

    @torch.library.custom_op("grading_example::wrapped", mutates_args=("k", "v"))
    def wrapped(token_ids: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
        return inner(token_ids, KvCache(k, v, length))

    return lambda token_ids, cache: wrapped(token_ids, cache.k, cache.v, cache.length)
