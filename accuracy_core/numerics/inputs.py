"""One prompt's logits, checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from accuracy_core.errors import InputMismatchError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class PromptLogits:
    """Logits of one prompt, (tokens, batch, vocab) each; `baseline` None: two-way mode.

    `target` may have fewer tokens (a guard) and more columns (padding) than the reference; `sampled` are the ids the
    target chose, (tokens, batch) int64 or None for its argmax.
    """

    baseline: torch.Tensor | None
    expected: torch.Tensor
    target: torch.Tensor
    sampled: torch.Tensor | None = None

    @property
    def reference_tokens(self) -> int:
        """Tokens the reference has."""
        return self.expected.shape[0]

    def check(self, index: int, vocab_size: int | None) -> PromptLogits:
        """The same, with `sampled` in shape. Raises InputMismatchError that names prompt `index` and both shapes."""
        at = f"prompt {index}"
        check_logits(self.expected, f"{at}: expected logits")
        check_logits(self.target, f"{at}: target logits", may_be_empty=True)
        if self.baseline is not None:
            check_logits(self.baseline, f"{at}: baseline logits")
            if self.baseline.shape != self.expected.shape:
                raise InputMismatchError(
                    f"{at}: baseline has shape {tuple(self.baseline.shape)}, expected {tuple(self.expected.shape)}",
                    fix="both references must cover the same tokens, batch rows and vocabulary",
                )
        (tokens, batch, vocab), (t_tokens, t_batch, t_vocab) = self.expected.shape, self.target.shape
        shapes = f"target has shape {tuple(self.target.shape)}, reference {tuple(self.expected.shape)}"
        if t_batch != batch:
            raise InputMismatchError(f"{at}: batch sizes differ: {shapes}")
        if t_tokens > tokens:
            raise InputMismatchError(f"{at}: {shapes}", fix="cut the target to the tokens that the reference has")
        known = vocab if vocab_size is None else vocab_size
        if known > vocab:
            raise InputMismatchError(
                f"{at}: the tokenizer has {known} ids, the reference logits {vocab} columns ({shapes})",
                fix="the reference was made with another tokenizer or a cut lm_head",
            )
        if t_vocab < known:
            raise InputMismatchError(
                f"{at}: the target's vocabulary is too narrow: {shapes}; {known} ids are known",
                fix="compare full-vocabulary logits of the same checkpoint",
            )
        return PromptLogits(self.baseline, self.expected, self.target, self._sampled(at))

    def _sampled(self, at: str) -> torch.Tensor | None:
        if self.sampled is None:
            return None
        ids, (tokens, batch, vocab) = torch.as_tensor(self.sampled), self.target.shape
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InputMismatchError(f"{at}: sampled ids must be integers, got {ids.dtype}")
        if ids.ndim == 1 and batch == 1:
            ids = ids.unsqueeze(1)
        if tuple(ids.shape) == (batch, tokens) and tokens != batch:
            ids = ids.T
        if tuple(ids.shape) != (tokens, batch):
            raise InputMismatchError(
                f"{at}: sampled ids have shape {tuple(ids.shape)}, the target's logits {tuple(self.target.shape)}",
                fix="give one id per token and batch row: (tokens, batch)",
            )
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
            raise InputMismatchError(f"{at}: sampled ids lie outside the target's vocabulary of {vocab}")
        return ids.long()


def check_logits(x: object, name: str, *, may_be_empty: bool = False) -> None:
    """Raises InputMismatchError unless `x` is a real floating tensor (tokens, batch, vocab) with something in it."""
    if not isinstance(x, torch.Tensor):
        raise InputMismatchError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.dtype not in _FLOATS:
        raise InputMismatchError(f"{name} must be floating point, got {x.dtype} of shape {tuple(x.shape)}")
    if x.ndim != 3:
        raise InputMismatchError(
            f"{name} must be (tokens, batch, vocab), got shape {tuple(x.shape)}", fix="add the missing dimension"
        )
    if x.numel() == 0 and not (may_be_empty and x.shape[0] == 0 and x.shape[1] and x.shape[2]):
        raise InputMismatchError(f"{name} are empty: shape {tuple(x.shape)}")
