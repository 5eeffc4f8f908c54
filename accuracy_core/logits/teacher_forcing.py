"""Teacher forcing around a function that can only generate: let it run, and re-prompt where it leaves the path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accuracy_core.errors import AssayError, InfrastructureError, InputMismatchError, NotMeasuredError
from accuracy_core.numerics.inputs import check_logits

GenerateFn = Callable[..., Any]


@dataclass(frozen=True)
class Forced:
    """`logits` (tokens, batch, vocab) of the target along the reference path and the `ids` (tokens, batch) it chose,
    None if it only returned logits. May be shorter than the path: the target stopped early. `calls` of generate_fn."""

    logits: torch.Tensor
    ids: torch.Tensor | None
    calls: int


@torch.no_grad()
def force(input_ids: Sequence[Sequence[int]], generate_fn: GenerateFn, path: torch.Tensor) -> Forced:
    """Logits of the target for every token of `path` (tokens, batch), each conditioned on the reference's tokens
    before it.

    `generate_fn(ids (batch, length) int64)` returns logits (tokens, batch, vocab), or those and the chosen ids. If it
    takes `max_new_tokens`, it is told how many tokens are still missing. Up to and including the first token that
    differs from the path its logits count; then it is called again with the prompt and the path so far. A generation
    that ends early without differing is taken as all there is. Prompts of different lengths are run one by one.

    Raises InputMismatchError (ids or outputs that do not fit, with both shapes), NotMeasuredError (the first
    generation is empty), InfrastructureError (generate_fn raised).
    """
    rows = [[int(i) for i in row] for row in input_ids]
    if len(rows) != path.shape[1]:
        raise InputMismatchError(
            f"input_ids have {len(rows)} batch rows, the reference logits {path.shape[1]}",
            fix="give one list of token ids per batch row of the reference",
        )
    if not all(rows):
        raise InputMismatchError("input_ids hold an empty prompt", fix="give at least one token id, for example BOS")
    if len({len(r) for r in rows}) == 1:
        return _force(torch.tensor(rows), generate_fn, path)
    parts = [_force(torch.tensor([row]), generate_fn, path[:, i : i + 1]) for i, row in enumerate(rows)]
    tokens = min(p.logits.shape[0] for p in parts)
    ids = [p.ids for p in parts if p.ids is not None]
    return Forced(
        torch.cat([p.logits[:tokens] for p in parts], 1),
        torch.cat([i[:tokens] for i in ids], 1) if len(ids) == len(parts) else None,
        sum(p.calls for p in parts),
    )


def _force(prompt: torch.Tensor, generate_fn: GenerateFn, path: torch.Tensor) -> Forced:
    wanted = path.shape[0]
    pieces: list[torch.Tensor] = []
    chosen: list[torch.Tensor] = []
    done, any_ids, calls = 0, False, 0
    while done < wanted:
        ids = torch.cat([prompt, path[:done].T], 1)
        logits, sampled = _call(generate_fn, ids, wanted - done, pieces, calls)
        calls += 1
        n = logits.shape[0]
        if n == 0:
            break
        choice = logits.argmax(-1) if sampled is None else sampled
        any_ids |= sampled is not None
        differs = (choice != path[done : done + n]).any(1).nonzero()
        keep = int(differs[0]) + 1 if len(differs) else n
        pieces.append(logits[:keep])
        chosen.append(choice[:keep])
        done += keep
        if not len(differs):
            break
    if not pieces:
        raise NotMeasuredError(
            f"generate_fn returned no token for a prompt of shape {tuple(prompt.shape)} ({wanted} wanted)",
            fix="check that the engine generates, does not stop at once, and returns logits (tokens, batch, vocab)",
        )
    return Forced(torch.cat(pieces), torch.cat(chosen) if any_ids else None, calls)


def _call(
    generate_fn: GenerateFn, ids: torch.Tensor, missing: int, before: list[torch.Tensor], calls: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One call, its answer checked and cut to what is missing."""
    at = f"call {calls + 1} of generate_fn with input of shape {tuple(ids.shape)}"
    try:
        result = (
            generate_fn(ids.clone(), max_new_tokens=missing) if _takes_length(generate_fn) else generate_fn(ids.clone())
        )
    except AssayError:
        raise
    except Exception as error:
        raise InfrastructureError(f"{at} raised {type(error).__name__}: {error}") from error
    logits, sampled = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    if logits is None:
        raise NotMeasuredError(f"{at} returned None", fix="return logits (tokens, batch, vocab)")
    check_logits(logits, f"{at}: its logits", may_be_empty=True)
    batch = ids.shape[0]
    if logits.shape[1] != batch:
        raise InputMismatchError(f"{at} returned logits of shape {tuple(logits.shape)}: batch {batch} was asked for")
    if before and (logits.shape[2], logits.dtype) != (before[0].shape[2], before[0].dtype):
        raise InputMismatchError(
            f"{at} returned logits of shape {tuple(logits.shape)} ({logits.dtype}), an earlier call "
            f"{tuple(before[0].shape)} ({before[0].dtype})",
            fix="every call must return the same vocabulary and dtype",
        )
    if sampled is not None:
        sampled = _tokens_first(torch.as_tensor(sampled), logits, ids, at)
    return logits[:missing], None if sampled is None else sampled[:missing]


def _tokens_first(sampled: torch.Tensor, logits: torch.Tensor, ids: torch.Tensor, at: str) -> torch.Tensor:
    """Chosen ids as (tokens, batch); also taken: (batch, tokens), (batch, prompt + tokens), (tokens,) for one row."""
    tokens, batch = logits.shape[:2]
    shape = tuple(sampled.shape)
    if sampled.is_floating_point() or sampled.is_complex() or sampled.dtype == torch.bool:
        raise InputMismatchError(f"{at} returned ids of dtype {sampled.dtype}: integers are needed")
    if shape == (tokens, batch):
        return sampled.long()
    if shape == (tokens,) and batch == 1:
        return sampled.long().unsqueeze(1)
    if shape == (batch, tokens):
        return sampled.long().T
    if shape == (batch, ids.shape[1] + tokens):
        return sampled.long()[:, ids.shape[1] :].T
    raise InputMismatchError(f"{at} returned ids of shape {shape} beside logits of shape {tuple(logits.shape)}")


def _takes_length(generate_fn: GenerateFn) -> bool:
    try:
        return "max_new_tokens" in inspect.signature(generate_fn).parameters
    except (TypeError, ValueError):
        return False
