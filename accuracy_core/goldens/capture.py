"""Further tensors out of the pass that the reference logits come from: KV caches, module outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Captured = dict[str, list[torch.Tensor]]


class Capture(Protocol):
    """Watches one teacher-forced forward pass over prompt + tokens, batch of one, and hands out named tensors.

    It is asked in FP32 and in the target's dtype, for every prompt; its tensors become part of the golden as
    `fp32.<name>` and `dtype.<name>`. `use_cache`: whether the model should return its KV cache in the output.
    """

    use_cache: bool

    def identity(self) -> Mapping[str, Any]:
        """Plain JSON values that say what is captured: part of the golden's key."""
        ...

    def recording(self, model: Any) -> AbstractContextManager[Callable[[Any], Mapping[str, Sequence[torch.Tensor]]]]:
        """Put hooks in place; on leaving they are gone. Inside, the function given takes the model's output and returns
        names (letters, digits, `_`, `-`, `.`) mapped to lists of tensors that own their memory."""
        ...
