"""One state over a matrix: never greener than its worst row."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import StateType
from pydantic import ValidationError

from accuracy_core.schemas import RunParameters
from flows.levels import LEVELS
from flows.nightly_regression import NightlyParameters, RowEnd, summary_state


def ends(*states):
    return [RowEnd(f"row{index}", "accuracy", state, "said") for index, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "kind", "name"),
    [
        (["Completed", "Completed"], StateType.COMPLETED, "Completed"),
        (["Completed", "AccuracyFailed", "Crashed", "ConfigurationFailed"], StateType.FAILED, "AccuracyFailed"),
        (["Completed", "Crashed", "ConfigurationFailed"], StateType.CRASHED, "Crashed"),
        (["Completed", "ConfigurationFailed"], StateType.FAILED, "ConfigurationFailed"),
        (["Completed", "NotMeasured"], StateType.FAILED, "NotMeasured"),
        ([], StateType.FAILED, "NotMeasured"),
    ],
)
def test_the_worst_row_names_the_state(states, kind, name):
    state = summary_state(ends(*states))
    assert (state.type, state.name) == (kind, name)


def test_the_message_counts_all_rows_and_names_the_worst():
    message = summary_state(ends("Completed", "AccuracyFailed", "Completed")).message
    assert "1 AccuracyFailed" in message
    assert "2 Completed" in message
    assert "row1 (accuracy)" in message
    assert "row0" not in message


def test_the_logits_level_takes_curated_prompts_unless_the_row_has_its_own():
    shaped = LEVELS["logits"].shape(RunParameters())
    assert shaped.stages == ["preflight", "prompt_analysis", "report"]
    assert shaped.prompt_analysis.curated
    own = LEVELS["logits"].shape(RunParameters.model_validate({"prompt_analysis": {"prompts": ["a"]}}))
    assert (own.prompt_analysis.curated, own.prompt_analysis.prompts) == (False, ["a"])
    RunParameters.model_validate(shaped.model_dump(mode="json"))  # what the API gets is valid


def test_levels_have_numbers_of_their_own():
    numbers = [level.number for level in LEVELS.values()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("given", [{"levels": []}, {"levels": ["speed"]}, {"at_once": 0}, {"marix": "x"}])
def test_wrong_parameters_are_refused(given):
    with pytest.raises(ValidationError):
        NightlyParameters.model_validate(given)
