"""Verdicts about verdicts: made-up analyses of runs with a known fault."""

from __future__ import annotations

from typing import Any

import pytest

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import Culprit, Finding, Phase, PluginStatus, PromptAnalysisStatus, Severity
from accuracy_core.selftest import Case, CaseResult, SelftestReport
from accuracy_core.selftest.judging import judge
from accuracy_core.selftest.plan import config_of

CONFIG = config_of("embedded")
ATTENTION = "model.layers.1.self_attn.attn"


def analysis(verdict: Verdict = Verdict.FAIL, *, findings: list[Finding] | None = None, **culprit: Any) -> Any:
    return PromptAnalysisStatus(
        verdict=verdict,
        plugins={"logit_validation": PluginStatus(plugin="logit_validation", verdict=verdict)},
        culprit=Culprit(**culprit) if culprit else None,
        findings=findings or [],
        phase=culprit.get("phase", Phase.NONE),
    )


def found(fault: str | None, status: PromptAnalysisStatus) -> CaseResult:
    return judge(Case("embedded", fault), status, CONFIG, "transformers")


def finding(check: str, outcome: Outcome, severity: Severity) -> Finding:
    return Finding(check=check, severity=severity, evidence="e", outcome=outcome)


def test_a_fault_that_is_found_where_it_is() -> None:
    result = found("kv-slot", analysis(phase=Phase.DECODE, module=ATTENTION, layer=1))
    assert result.detected
    assert result.placed
    assert (result.layer, result.strength, result.level) == (1, 1, "kv")


@pytest.mark.parametrize(
    ("phase", "module", "right"),
    [
        (Phase.BOTH, ATTENTION, (False, True)),
        (Phase.DECODE, "model.layers.1.self_attn.o_proj", (True, False)),
        (Phase.DECODE, "model.layers.2.self_attn.attn", (True, False)),
        (Phase.DECODE, None, (True, False)),
        (Phase.NONE, ATTENTION, (False, True)),
    ],
)
def test_a_wrong_phase_or_module_is_not_right(phase: Phase, module: str | None, right: tuple[bool, bool]) -> None:
    result = found("kv-slot", analysis(phase=phase, module=module))
    assert (result.phase_right, result.module_right) == right
    assert not result.placed


def test_the_cache_itself_may_be_named_with_its_layer() -> None:
    assert found("kv-scale", analysis(phase=Phase.PREFILL, module="KV cache (key)", layer=1)).placed
    assert not found("kv-scale", analysis(phase=Phase.PREFILL, module="KV cache (key)", layer=2)).placed
    assert not found("mlp-scale", analysis(phase=Phase.PREFILL, module="KV cache (key)", layer=1)).placed


def test_a_pass_is_a_miss() -> None:
    result = found("mlp-scale", analysis(Verdict.PASS))
    assert not result.detected
    assert result.placed is False


def test_suspect_counts_as_found() -> None:
    assert found("mlp-scale", analysis(Verdict.SUSPECT, phase=Phase.BOTH, module="model.layers.1.mlp")).placed


def test_a_fault_of_the_configuration_is_found_by_a_finding_and_by_nothing_else() -> None:
    wrong = finding("prompt_ids", Outcome.CONFIGURATION, Severity.ERROR)
    assert found("double-bos", analysis(phase=Phase.BOTH, findings=[wrong])).placed
    assert not found("double-bos", analysis(phase=Phase.BOTH, module="model.embed_tokens")).placed
    assert found("sampler-default", analysis(Verdict.PASS, findings=[wrong])).detected


def test_a_clean_run_alarms_through_verdicts_and_findings() -> None:
    assert not found(None, analysis(Verdict.PASS)).detected
    assert found(None, analysis(Verdict.SUSPECT)).detected
    assert found(None, analysis(Verdict.PASS, findings=[finding("x", Outcome.CONFIGURATION, Severity.ERROR)])).detected
    notes = [
        finding("x", Outcome.NOT_MEASURED, Severity.ERROR),
        finding("y", Outcome.CONFIGURATION, Severity.WARNING),
    ]
    assert not found(None, analysis(Verdict.PASS, findings=notes)).detected


def test_a_clean_run_in_which_something_was_not_measured_proves_nothing() -> None:
    status = analysis(Verdict.PASS)
    silent = PluginStatus(plugin="kv_cache", outcome=Outcome.NOT_MEASURED, errors={"plugin": "no capability"})
    status = status.model_copy(update={"plugins": {**status.plugins, "kv_cache": silent}})
    result = found(None, status)
    assert not result.detected
    assert result.error == "kv_cache has no verdict: no capability"


def case(fault: str | None, *, detected: bool = True, right: bool = True, error: str = "") -> CaseResult:
    return CaseResult(
        architecture="embedded", fault=fault, detected=detected, phase_right=right, module_right=right, error=error
    )


def test_rates() -> None:
    many = [case("mlp-scale") for _ in range(19)]
    clean = [case(None, detected=False)]

    def passed(*more: CaseResult) -> bool:
        return SelftestReport(engine="vllm", cases=[*many, *clean, *more]).passed

    assert passed(case("kv-slot", right=False)), "19 of 20 placed"
    assert not passed(case("kv-slot", right=False), case("kv-slot", right=False)), "19 of 21"
    assert not passed(case("kv-slot", detected=False)), "one missed"
    assert not passed(case(None)), "a false alarm"
    assert not passed(case(None, detected=False, error="the engine died")), "a run that was not made proves nothing"
    assert not SelftestReport(engine="vllm").passed, "nothing was run"


def test_the_summary_says_the_figures_and_the_document_reads_back() -> None:
    report = SelftestReport(engine="vllm", cases=[case("mlp-scale"), case("kv-slot", right=False), case(None)])
    assert "2 faults on 1 architectures, 2 runs: 2/2 (100.0%) detected, 1/2 (50.0%)" in report.summary()
    assert "1 false alarms in 1 clean runs" in report.summary()
    assert SelftestReport.from_json(report.to_json()) == report
