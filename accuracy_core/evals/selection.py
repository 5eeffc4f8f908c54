"""Which deviated prompts go on to the prompt analysis."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import DeviatedPrompt

DEFAULT_MAX_PROMPTS = 3


def select_prompts(
    deviated: Sequence[DeviatedPrompt],
    max_prompts: int = DEFAULT_MAX_PROMPTS,
    *,
    model_errors: Sequence[DeviatedPrompt] = (),
    seed: int = 0,
) -> list[DeviatedPrompt]:
    """At most `max_prompts`, spread over tasks, worst first within each.

    `deviated` is taken in its own order (worst first; with a reference, only what is worse than it). Equally bad
    samples are drawn by a hash of `seed` and their name, so a choice is reproducible and no task's first documents
    are preferred. Tasks take turns. `model_errors` (wrong in the reference too) fill up what is left. Raises
    ConfigurationError for max_prompts < 1.
    """
    if max_prompts < 1:
        raise ConfigurationError(f"max_prompts {max_prompts}: nothing would be analysed", fix="give at least 1")
    chosen = _take(deviated, max_prompts, seed)
    return chosen + _take(model_errors, max_prompts - len(chosen), seed)


class Deviating(Protocol):
    """What the order depends on."""

    @property
    def task(self) -> str: ...
    @property
    def doc_id(self) -> int: ...
    @property
    def badness(self) -> float: ...


Item = TypeVar("Item", bound=Deviating)


def in_turns(items: Sequence[Item], seed: int = 0) -> list[Item]:
    """All items in the order in which they are taken: tasks take turns, worst first within each."""
    by_task: dict[str, list[Item]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    queues = [sorted(queue, key=lambda item: (-item.badness, _draw(item, seed))) for queue in by_task.values()]
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _take(prompts: Sequence[DeviatedPrompt], count: int, seed: int) -> list[DeviatedPrompt]:
    outlines = getattr(prompts, "outlines", None)  # a lazy sequence: order it without reading every prompt
    if outlines is None:
        return in_turns(prompts, seed)[:count]
    position = {id(outline): index for index, outline in enumerate(outlines)}
    return [prompts[position[id(outline)]] for outline in in_turns(outlines, seed)[:count]]


def _draw(item: Deviating, seed: int) -> str:
    return hashlib.sha256(f"{seed}\0{item.task}\0{item.doc_id}".encode()).hexdigest()
