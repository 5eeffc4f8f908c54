"""Which deviated prompts go on to the prompt analysis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.deviations import DeviatedPrompts
from accuracy_core.evals.turn_order import turn_order
from accuracy_core.schemas import DeviatedPrompt

DEFAULT_MAX_PROMPTS = 3


def select_prompts(
    deviated: Sequence[DeviatedPrompt],
    max_prompts: int = DEFAULT_MAX_PROMPTS,
    *,
    model_errors: Sequence[DeviatedPrompt] = (),
    seed: int = 0,
) -> list[DeviatedPrompt]:
    """At most `max_prompts`, spread over tasks, worst first within each; see `turn_order`.

    With a reference, `deviated` holds only what is worse than it; `model_errors` (wrong in the reference too) fill up
    what is left. The same input and seed give the same choice. Raises ConfigurationError for max_prompts < 1.
    """
    if max_prompts < 1:
        raise ConfigurationError(f"max_prompts {max_prompts}: nothing would be analysed", fix="give at least 1")
    chosen = _take(deviated, max_prompts, seed)
    return chosen + _take(model_errors, max_prompts - len(chosen), seed)


def _take(prompts: Sequence[DeviatedPrompt], count: int, seed: int) -> list[DeviatedPrompt]:
    if isinstance(prompts, DeviatedPrompts):  # orders without reading every prompt
        return prompts.reordered(seed)[:count]
    docs = np.array([prompt.doc_id for prompt in prompts], np.int64)
    badness = np.array([prompt.badness for prompt in prompts], np.float64)
    order = turn_order([prompt.task for prompt in prompts], docs, badness, seed)
    return [prompts[int(index)] for index in order[:count]]
