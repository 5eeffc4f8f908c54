"""Would the engine sample although the comparison is greedy?"""

from __future__ import annotations

from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding

_NEUTRAL = {"temperature": (0, 0.0, 1.0), "top_p": (1, 1.0), "top_k": (0, -1), "min_p": (0, 0.0),
            "repetition_penalty": (1, 1.0), "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0)}  # fmt: skip


@preflight_check("sampling_defaults", "checkpoint", "do defaults of the checkpoint or the engine leave greedy?")
def check_sampling(facts: PreflightFacts) -> Iterator[Finding]:
    """An engine argument that changes every request is wrong; a checkpoint's default only matters to requests that
    leave the setting open, and Assay's never do."""
    forced = facts.spec.engine_args.get("override_generation_config")
    if isinstance(forced, dict):
        changed = {name: value for name, value in forced.items() if name in _NEUTRAL and value not in _NEUTRAL[name]}
        if changed:
            yield wrong(
                "sampling_defaults",
                f"engine_args.override_generation_config sets {changed}: requests that leave these open are not greedy",
                "take it out of the engine's arguments for accuracy runs",
            )
    config = facts.generation_config
    own = {
        name: config[name] for name in _NEUTRAL if config.get(name) is not None and config[name] not in _NEUTRAL[name]
    }
    if config.get("do_sample"):
        own["do_sample"] = True
    if own:
        yield doubtful(
            "sampling_defaults",
            f"generation_config.json asks for {own}; a vLLM server applies it to requests that leave it open",
            "nothing for runs of Assay, which send every setting; others: --generation-config vllm, or temperature=0",
        )


@preflight_check("server_sampling", "server", "is a request that leaves everything open answered greedily?")
def check_server_sampling(facts: PreflightFacts) -> Iterator[Finding]:
    if facts.server is None or facts.server.greedy_agrees is None:
        yield unmeasured("server_sampling", "the server was not asked, or does not say what it sampled from")
    elif facts.server.greedy_agrees < 1:
        yield wrong(
            "server_sampling",
            f"requests without sampling settings agree with greedy decoding in {facts.server.greedy_agrees:.0%} of "
            "their tokens only",
            "start the server with --generation-config vllm, or send temperature=0, top_p=1 and no penalties",
        )
