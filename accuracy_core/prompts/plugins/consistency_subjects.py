"""Prompts of the consistency checks: the run's own, one long one where those are too short or few, and references."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.context import Goldens, PluginContext
from accuracy_core.prompts.plugins.captured_goldens import all_forced_tokens
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts

if TYPE_CHECKING:
    import torch

#: curated prompt that is added: past two blocks of 32 tokens
_LONG = "long"


@dataclass(frozen=True)
class Subject:
    """A prompt, the tokens to force after it (none: whatever the engine generates first), and the references' rows.

    `fp32` and `expected` are float32 (tokens, vocab), None where there are no references. `index` None: added here.
    """

    index: int | None
    label: str
    prompt: tuple[int, ...]
    forced: tuple[int, ...] = ()
    fp32: torch.Tensor | None = None
    expected: torch.Tensor | None = None

    @property
    def name(self) -> str:
        """How a user knows it."""
        if self.index is None:
            return f"curated prompt {self.label}"
        return f"prompt {self.index}" + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True)
class Subjects:
    """`left_out`: prompts that take no part in any check -> why."""

    chosen: list[Subject]
    left_out: dict[str, str]

    @property
    def added(self) -> list[str]:
        return [subject.label for subject in self.chosen if subject.index is None]


def choose_subjects(ctx: PluginContext, *, longer_than: int, most: int) -> Subjects:
    """At most `most` prompts, the first ones, with references through the golden cache.

    The curated long prompt joins them when none has more than `longer_than` tokens, which a cached block and a second
    piece of the prefill need, or when there is only one, which makes no batch. References that cannot be had leave
    `forced` empty. Raises ConfigurationError as the goldens do, InfrastructureError when they cannot be fetched.
    """
    prompts = list(ctx.prepared[:most])
    left_out = {_subject(p).name: f"only the first {most} prompts are taken" for p in ctx.prepared[most:]}
    if len(prompts) < 2 or max(len(prompt.token_ids) for prompt in prompts) <= longer_than:
        prompts += _long_prompt(ctx, {tuple(prompt.token_ids) for prompt in prompts})
    try:
        goldens = _references(ctx, prompts)
    except AssayError as error:
        if error.outcome is not Outcome.NOT_MEASURED:
            raise
        return Subjects([_subject(prompt, ctx) for prompt in prompts], left_out)
    here = replace(
        ctx, goldens=goldens, prepared=tuple(prompts), prompts=tuple(tuple(prompt.token_ids) for prompt in prompts)
    )
    unusable: dict[int, str] = {}
    forced = all_forced_tokens(here, unusable)
    left_out |= {_subject(prompts[place]).name: text for place, text in unusable.items()}
    chosen = [_with_references(ctx, prompts[place], tokens, goldens, place) for place, tokens in forced.items()]
    return Subjects(chosen, left_out)


def _references(ctx: PluginContext, prompts: list[PreparedPrompt]) -> Goldens:
    from accuracy_core.prompts.goldens import compute_goldens

    return compute_goldens(
        PreparedPrompts(prompts=prompts),
        ctx.server_config,
        ctx.output_length,
        tokenizer=ctx.tokenizer,
        goldens_dir=ctx.goldens_dir,
    )


def _long_prompt(ctx: PluginContext, there: set[tuple[int, ...]]) -> list[PreparedPrompt]:
    """The curated long prompt, unless it is there already or cannot be made."""
    from accuracy_core.prompts.curated import curated_prompts
    from accuracy_core.prompts.orchestrator import context_length

    longest = ctx.server_config.max_model_len or context_length(ctx.server_config)
    room = longest - ctx.output_length if longest is not None else 4096
    if ctx.tokenizer is None or room < 1:
        return []
    made = (prompt for prompt in curated_prompts(ctx.tokenizer, room) if prompt.label == _LONG)
    return [prompt for prompt in made if tuple(prompt.token_ids) not in there]


def _subject(prompt: PreparedPrompt, ctx: PluginContext | None = None) -> Subject:
    own = ctx is None or any(prompt is one for one in ctx.prepared)
    return Subject(prompt.index if own else None, prompt.label, tuple(prompt.token_ids))


def _with_references(
    ctx: PluginContext, prompt: PreparedPrompt, forced: list[int], goldens: Any, place: int
) -> Subject:
    fp32, expected = (goldens[name][place][: len(forced), 0].float() for name in ("fp32_logits", "dtype_logits"))
    return replace(_subject(prompt, ctx), forced=tuple(forced), fp32=fp32, expected=expected)
