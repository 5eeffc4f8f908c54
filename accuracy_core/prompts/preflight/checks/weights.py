"""Did both sides find every weight, and use every weight that they found?"""

from __future__ import annotations

from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding

_SHOWN = 4


@preflight_check("weights", "checkpoint", "are weights missing, unused or of another shape when the reference loads?")
def check_weights(facts: PreflightFacts) -> Iterator[Finding]:
    """A missing weight is made up at random; an unused one means that the model is not the one that was saved."""
    return _loaded("weights", "reference", facts)


@preflight_check("engine_weights", "engine", "are weights missing when the engine loads?")
def check_engine_weights(facts: PreflightFacts) -> Iterator[Finding]:
    """As `weights`, by what the engine's own loader said."""
    return _loaded("engine_weights", "target", facts)


def _loaded(check: str, side: str, facts: PreflightFacts) -> Iterator[Finding]:
    loads = [load for load in facts.loads if load.side == side]
    if not loads:
        yield unmeasured(check, f"nothing is known of how the {side} loaded the checkpoint")
    for load in loads:
        if load.error:
            yield wrong(
                check,
                f"{side}: the checkpoint cannot be loaded: {load.error}",
                "check config.json (architectures, rotary settings) against the publisher's: without a reference "
                "nothing can be compared",
            )
        if load.missing:
            yield wrong(
                check,
                f"{side}: {len(load.missing)} weights are not in the checkpoint and would be random: "
                f"{_listed(load.missing)}",
                "download the checkpoint again, all shards of it; check `architectures` in config.json",
            )
        if load.mismatched:
            yield wrong(
                check,
                f"{side}: {len(load.mismatched)} weights have another shape than the model: {_listed(load.mismatched)}",
                "config.json and weights belong to different models: take both from one revision",
            )
        if load.unexpected:
            yield doubtful(
                check,
                f"{side}: {len(load.unexpected)} weights of the checkpoint are not used: {_listed(load.unexpected)}",
                "expected for adapters, scales and multi-token heads; otherwise the architecture is the wrong one",
            )


def _listed(names: tuple[str, ...]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
