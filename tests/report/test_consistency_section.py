"""The section of the consistency checks: values beside limits, what failed, what is missing, everything escaped."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.plugins.consistency_summary import findings, summary
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts
from accuracy_core.prompts.text_report import prompt_report
from accuracy_core.report import generate_report
from accuracy_core.report.sections.engine_consistency import EngineConsistencySection, conduct_text, extent
from accuracy_core.schemas import (
    ConsistencyCheck,
    ConsistencyKind,
    ConsistencyResult,
    ConsistencyRows,
    Phase,
    PromptAnalysisStatus,
    ReplayConduct,
    RunDir,
)

ATTACK = "<script>alert(1)</script>"
LIMITS = {"pooled": 1.75, "prompt": 2.0, "row": 4.0, "error_ratio": 1.5}


def rows(**change) -> ConsistencyRows:
    fields = {"index": 0, "label": ATTACK, "tokens": 8, "bit_equal": True, "pooled": 0.0, "row": 0.0,
              "verdict": Verdict.PASS, "conduct": ReplayConduct(largest_batch=4, prefill_chunks=[24, 9])}  # fmt: skip
    return ConsistencyRows(**{**fields, **change})


def made() -> ConsistencyResult:
    bad = rows(
        bit_equal=False, pooled=2.5, row=13.5, error_ratio=3.25, worst_token=3, first_bad_token=2, phase=Phase.DECODE,
        verdict=Verdict.FAIL, reasons=["a row differs by 13.5 times the dtype noise, limit 4 (3.4 times over)"],
    )  # fmt: skip
    checks = [
        ConsistencyCheck(kind=ConsistencyKind.REPEAT, verdict=Verdict.PASS, prompts=[rows()]),
        ConsistencyCheck(
            kind=ConsistencyKind.BATCHING, verdict=Verdict.FAIL, pooled=2.25, limits=LIMITS, prompts=[bad],
            left_out={ATTACK: ATTACK},
        ),
        ConsistencyCheck(kind=ConsistencyKind.CHUNKED_PREFILL, reason=ATTACK),
    ]  # fmt: skip
    return ConsistencyResult(
        target=ATTACK, dtype="bfloat16", output_length=8, prefill_chunk=24, added=[ATTACK], checks=checks
    )


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    run = RunDir.at(tmp_path / "run").create()
    result = made()
    prompts = [PreparedPrompt(index=i, token_ids=[1, 2], source="token_ids", text=ATTACK) for i in (0, 1)]
    run.write(run.prompt_analysis / "prompts.json", PreparedPrompts(prompts=prompts))
    run.write(run.consistency_json, result)
    status = PromptAnalysisStatus(
        verdict=Verdict.FAIL, n_prompts=2, plugins={"engine_consistency": summary(result)}, findings=findings(result)
    )
    run.write(run.prompt_analysis_json, status)
    return run


def test_values_stand_beside_their_limits_and_nothing_is_markup(run_dir):
    section = EngineConsistencySection()
    assert not section.applies(RunDir.at(run_dir.root / "elsewhere"))
    assert section.applies(run_dir)
    html = section.render(run_dir).replace("\N{NO-BREAK SPACE}", " ")
    for text in ("2.5 of 2", "13.5 of 4", "3.25 of 1.5", "1 of 1 fail", "1, all bit-equal", "2.25 of 1.75",
                 "token 2 (decode): a row differs", "--max-num-seqs 1 to confirm", "was added"):  # fmt: skip
        assert text in html
    assert ATTACK not in html + section.render_prompt(run_dir, 0)
    assert "in batches of up to 4" in section.render_prompt(run_dir, 0)
    assert section.render_prompt(run_dir, 1) == ""


def test_the_whole_page_names_the_way_and_what_to_do(run_dir):
    html = Path(generate_report(run_dir)).read_text()
    assert ATTACK not in html
    report = json.loads(run_dir.report_json.read_text())
    assert report["section_errors"] == {}
    assert report["headline"].startswith("numerics fail: batching changes the logits: prompt 0")
    assert "--max-num-seqs 1" in report["conclusion"]["fix"]
    assert "Engine consistency" in html


def test_a_failure_on_an_added_prompt_and_what_was_not_measured_reach_the_machines(run_dir):
    result = made()
    failing = result.checks[1]
    (bad,) = failing.prompts
    added = failing.model_copy(update={"prompts": [bad.model_copy(update={"index": None})]})
    result = result.model_copy(update={"checks": [result.checks[0], added, result.checks[2]]})
    status = run_dir.read(run_dir.prompt_analysis_json, PromptAnalysisStatus)
    plugins = {"engine_consistency": summary(result)}
    run_dir.write(run_dir.prompt_analysis_json, status.model_copy(update={"plugins": plugins}))
    generate_report(run_dir)
    cases = {case.get("name"): case for case in ElementTree.parse(run_dir.root / "junit.xml").iter("testcase")}
    (failure,) = cases["all prompts"]
    assert (failure.tag, failure.get("type")) == ("failure", "numerics")
    assert "batching changes the logits: curated prompt" in failure.text
    assert not list(cases["prompt 0"])
    text = prompt_report(run_dir.read(run_dir.prompt_analysis_json, PromptAnalysisStatus), PreparedPrompts())
    assert f"not measured: chunked prefill: {ATTACK}" in text


@pytest.mark.parametrize(
    ("kind", "text"),
    [("repeat", "–"), ("prefix_cache", "32 tokens from the cache"), ("batching", "in batches of up to 2"),
     ("chunked_prefill", "prompt in 2 pieces of up to 24 tokens")],
)  # fmt: skip
def test_how_a_request_was_run_in_words(kind, text):
    conduct = ReplayConduct(cached_tokens=32, prefill_chunks=[24, 9], largest_batch=2)
    assert conduct_text(ConsistencyKind(kind), conduct) == text


def test_rows_that_are_too_far_off_only_together_are_laid_on_no_prompt():
    reason = "all rows together differ by 2.25 times the dtype noise, limit 1.75 (1.3 times over)"
    check = ConsistencyCheck(
        kind=ConsistencyKind.BATCHING, verdict=Verdict.FAIL, pooled=2.25, limits=LIMITS, reason=reason,
        prompts=[rows(bit_equal=False, pooled=1.9, row=3.5, worst_token=3)],
    )  # fmt: skip
    assert extent(check) == "1, none bit-equal"
    status = summary(made().model_copy(update={"checks": [check]}))
    assert status.worst.detail == f"batching changes the logits: no prompt by itself: {reason}"
    assert (status.worst.prompt, status.worst.token, status.worst.value, status.worst.limit) == (-1, -1, 2.25, 1.75)
