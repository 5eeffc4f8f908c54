"""What level 2 runs where nobody chose, and that a choice is kept."""

from __future__ import annotations

import pytest

from accuracy_core.schemas import EngineSpec, PromptParameters, RunParameters
from flows.levels import logits_alone

BOTH = ["logit_validation", "engine_consistency"]


def plugins(engine: str, **prompts) -> list[str]:
    parameters = RunParameters(
        engine=EngineSpec(model="m", engine=engine), prompt_analysis=PromptParameters(**prompts)
    )  # fmt: skip
    return logits_alone(parameters).prompt_analysis.plugins


@pytest.mark.parametrize(
    ("engine", "expected"),
    [("vllm", BOTH), ("vllm-server", ["logit_validation"]), ("transformers", ["logit_validation"])],
)
def test_an_engine_that_serves_in_several_ways_is_held_against_itself(engine, expected):
    assert plugins(engine, output_length=4) == expected


@pytest.mark.parametrize("chosen", [["logit_validation"], ["kv_cache"], [*BOTH, "kv_cache"]])
def test_a_choice_is_kept_even_when_it_is_the_default(chosen):
    assert plugins("vllm", plugins=chosen) == chosen


def test_a_second_time_changes_nothing_also_after_json():
    once = logits_alone(RunParameters(engine=EngineSpec(model="m")))
    there = RunParameters.model_validate(once.model_dump(mode="json"))
    assert logits_alone(there).prompt_analysis.plugins == logits_alone(once).prompt_analysis.plugins == BOTH
