"""Ways of serving that a replay is run under: prompts in pieces, what earlier requests left in the prefix cache."""

import contextlib
from typing import Any, Callable, Iterator, Optional

from assay_inside.patching import Undo, set_attribute, take_back, wrap


def caches_prefixes(llm: Any) -> bool:
    """Whether the engine keeps a prefix cache."""
    cache = getattr(getattr(llm.llm_engine, "vllm_config", None), "cache_config", None)
    return bool(getattr(cache, "enable_prefix_caching", False))


def forget_prefixes(llm: Any) -> None:
    """Empty the prefix cache, where there is one. Raises ValueError when it cannot be."""
    if not caches_prefixes(llm):
        return
    if not hasattr(llm, "reset_prefix_cache"):
        raise ValueError("this vLLM has no way to empty its prefix cache")
    if llm.reset_prefix_cache() is False:
        raise ValueError("the prefix cache was not emptied: blocks of it are in use")


@contextlib.contextmanager
def prefilled_in_pieces(llm: Any, tokens: Optional[int]) -> Iterator[None]:
    """Calls made within this block run at most `tokens` tokens of a request; None leaves the scheduler alone.

    Raises ValueError where the scheduler is not to be reached, or does not cut prompts.
    """
    undo: Undo = []
    try:
        if tokens is not None:
            _limit(_scheduler(llm), tokens, undo)
        yield
    finally:
        take_back(undo)


def _scheduler(llm: Any) -> Any:
    core = getattr(getattr(llm.llm_engine, "engine_core", None), "engine_core", None)
    if not hasattr(core, "scheduler"):
        raise ValueError(
            "the scheduler runs in another process (VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps it in this one)"
        )
    return core.scheduler


def _limit(scheduler: Any, tokens: int, undo: Undo) -> None:
    config = scheduler.scheduler_config
    if not getattr(config, "enable_chunked_prefill", True):
        raise ValueError("chunked prefill is off in this engine (enable_chunked_prefill)")
    set_attribute(config, "long_prefill_token_threshold", tokens, undo)
    if hasattr(scheduler, "adaptive_long_prefill_threshold"):
        # it would raise the threshold to a fair share of the call
        set_attribute(scheduler, "adaptive_long_prefill_threshold", False, undo)
    budget = scheduler.max_num_scheduled_tokens
    set_attribute(scheduler, "max_num_scheduled_tokens", budget, undo)

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            # the threshold does not hold for a request that is alone, which makes nobody wait: then the call is small
            alone = len(scheduler.requests) == 1
            scheduler.max_num_scheduled_tokens = min(budget, tokens) if alone else budget
            return right(*args, **kwargs)

        return schedule

    wrap(scheduler, "schedule", make, undo)
