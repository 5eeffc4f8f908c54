"""A verdict, a wrong set-up and a dead engine are different Prefect states."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import StateType

from accuracy_core.errors import AssayError, ConfigurationError, EngineDiedError, NotMeasuredError, ReferenceError_
from accuracy_core.prompts.conclusion import conclude
from accuracy_core.schemas import EngineSpec, PromptParameters, RunParameters
from flows.states import state_of


@pytest.mark.parametrize(
    ("error", "kind", "name", "code"),
    [
        (ConfigurationError("no such model"), StateType.FAILED, "ConfigurationFailed", 3),
        (EngineDiedError("gone", log_tail="last words"), StateType.CRASHED, "Crashed", 1),
        (NotMeasuredError("no server"), StateType.FAILED, "NotMeasured", 1),
        (ReferenceError_("NaN in the golden"), StateType.FAILED, "NotMeasured", 1),
    ],
)
def test_each_outcome_has_its_state(error: AssayError, kind, name, code):
    conclusion = conclude(None, None, error=error)
    state = state_of(conclusion)
    assert (state.type, state.name, conclusion.exit_code) == (kind, name, code)
    assert error.message in (state.message or "")


@pytest.mark.slow
def test_the_flow_ends_in_these_states_for_real(tmp_path):
    from flows.accuracy_debugger import accuracy_debugger, run_here
    from flows.local_api import local_api

    missing = RunParameters(engine=EngineSpec(model="/no/such/model"), output_dir=str(tmp_path / "a"))
    only_prompts = RunParameters(
        engine=EngineSpec(model="embedded", engine="transformers"),
        prompt_analysis=PromptParameters(prompts=["Q: 1+1\nA:"], output_length=4),
        stages=["prompt_analysis", "report"],
        output_dir=str(tmp_path / "b"),
    )
    with local_api():
        state = accuracy_debugger(missing, return_state=True)
        assert (state.type, state.name) == (StateType.FAILED, "ConfigurationFailed")
        state = accuracy_debugger(only_prompts, return_state=True)
        assert (state.type, state.name) == (StateType.COMPLETED, "Completed")
        conclusion, page = run_here(only_prompts)
    assert conclusion.numerics_verdict == "pass"
    assert page is not None
    assert (tmp_path / "b" / "report.json").exists()
