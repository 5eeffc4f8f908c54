"""Routers of mixture-of-experts modules: choosing experts again from given router logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode


def is_router(module: nn.Module, output: Any) -> bool:
    """A module that projects onto experts and returns the logits first, then what follows from them."""
    return isinstance(output, tuple) and len(output) > 1 and isinstance(getattr(module, "weight", None), nn.Parameter)


def route_again(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], logits: torch.Tensor) -> Any:
    """Output of the router's forward as it is when its projection gives `logits` (tokens, experts).

    Scores and chosen experts are functions of the logits that each architecture computes in its own way; running its
    own forward with the projection replaced keeps to that.
    """
    with _FirstProjectionGives(logits):
        return module.forward(*args, **kwargs)


class _FirstProjectionGives(TorchFunctionMode):
    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self._logits: torch.Tensor | None = logits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and self._logits is not None:
            logits, self._logits = self._logits, None
            return logits
        return func(*args, **(kwargs or {}))
