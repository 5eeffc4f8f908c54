"""What modules make of a run's decision."""

from __future__ import annotations

import pytest

from accuracy_core.errors import InfrastructureError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.conclusion import conclude
from accuracy_core.schemas import ModuleCheck, ModuleValidationResult, PromptAnalysisStatus

PASS = ModuleCheck(kind="mlp", layer=0, phase="prefill", verdict=Verdict.PASS)
CUT = ModuleCheck(kind="rope", layer=0, phase="decode", verdict=Verdict.PASS, finding="digits are cut off")
FAIL = ModuleCheck(kind="attention", layer=3, phase="decode", verdict=Verdict.FAIL, reason="L2 ratio 7")
MISSING = ModuleCheck(kind="experts", layer=0, phase="", outcome=Outcome.NOT_MEASURED, reason="no tap")


def result(*checks: ModuleCheck) -> ModuleValidationResult:
    return ModuleValidationResult(target="vllm", dtype="bfloat16", seeds=1, prefill=1, decode=1, checks=list(checks))


@pytest.mark.parametrize(
    ("checks", "state", "code"),
    [
        ([PASS], "Completed", 0),
        ([PASS, CUT], "Completed", 0),
        ([PASS, FAIL], "AccuracyFailed", 2),
        ([MISSING, FAIL], "AccuracyFailed", 2),
        ([PASS, MISSING], "NotMeasured", 1),
        ([MISSING], "NotMeasured", 1),
        ([], "NotMeasured", 1),
    ],
)
def test_alone_they_decide(checks, state, code):
    decided = conclude(None, None, skipped=["evaluate"], modules=result(*checks))
    assert (decided.state, decided.exit_code) == (state, code)


def test_a_pass_says_what_was_not_measured_behind_what_passed():
    decided = conclude(None, None, skipped=["evaluate", "task_analysis", "prompt_analysis"], modules=result(PASS))
    assert decided.headline == (
        "all 1 module checks pass: mlp; not measured: the score (stages evaluate and task_analysis left out); "
        "the numerics of the logits (stage prompt_analysis left out)"
    )


def test_module_layer_phase_and_findings_are_named():
    assert "attention, layer 3, decode (L2 ratio 7)" in conclude(None, None, modules=result(FAIL)).headline
    assert conclude(None, None, modules=result(PASS, CUT)).notes == ["rope: digits are cut off (rope, layer 0, decode)"]


def test_a_proven_failure_is_not_hidden_by_a_later_breakdown():
    broken = InfrastructureError("the engine died")
    assert conclude(None, None, error=broken, modules=result(FAIL)).exit_code == 2
    assert conclude(None, None, error=broken, modules=result(PASS)).state == "Crashed"


def test_modules_that_pass_do_not_excuse_logits_and_those_that_fail_fail_clean_ones():
    def analysis(verdict: Verdict) -> PromptAnalysisStatus:
        return PromptAnalysisStatus(outcome=Outcome.NUMERICS, verdict=verdict, n_prompts=1)

    skipped = ["evaluate", "task_analysis"]
    assert conclude(None, analysis(Verdict.FAIL), skipped=skipped, modules=result(PASS)).exit_code == 2
    assert conclude(None, analysis(Verdict.PASS), skipped=skipped, modules=result(FAIL)).exit_code == 2
