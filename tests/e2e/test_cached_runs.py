"""A rerun starts no engine for what is known, and starts it when asked to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accuracy_core.schemas import RunDir, StageRecord
from tests.e2e.conftest import started

pytestmark = pytest.mark.slow


def traces_of_engines(output: Path) -> dict[str, object]:
    """What any start of an engine changes: its logs, and the note of who held the core last."""
    logs = [output / "eval_results" / "server.log", output / "prompt_analysis" / "engine.log"]
    notes = sorted(Path(os.environ["ASSAY_LOCK_DIR"]).glob("cpu-*.lock"))
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in [*logs, *notes]}


def states(output: Path) -> dict[str, str]:
    run_dir = RunDir.at(output)
    records = (run_dir.read(path, StageRecord) for path in run_dir.stages.glob("*.json"))
    return {record.stage: record.status for record in records}


@pytest.fixture
def rerun(finished_run, prefect_api):
    """`rerun("--refresh", …)`: the same parameters in the same directory."""
    output = finished_run[0].output

    def go(*arguments: str):
        config = str(output.parent / "parameters.json")
        with started(output, "--config", config, *arguments, api=prefect_api) as command:
            text = command.finish()
        assert command.code == 0, text
        return command, text

    return output, go


def test_a_rerun_after_deleting_the_report_starts_no_engine(rerun):
    output, go = rerun
    for name in ("combined_report.html", "report.json"):
        (output / name).unlink()
    before = traces_of_engines(output)
    command, text = go()
    assert traces_of_engines(output) == before
    assert (output / "combined_report.html").stat().st_size > 100_000
    assert command.report()["verdict"] == "pass"
    stages = ("preflight", "preflight_requests", "evaluate", "task_analysis", "prompt_analysis")
    cached = dict.fromkeys(stages, "cached")
    assert states(output) | cached == states(output)
    assert "results of an earlier run with the same inputs" in text


def test_other_thresholds_judge_the_same_answers_and_refresh_starts_the_engine_for_its_stage_only(rerun):
    output, go = rerun
    before = traces_of_engines(output)
    go("--threshold", "assay_arith/exact_match,strict-match=0.5", "--refresh", "prompt_analysis")
    after = traces_of_engines(output)
    changed = {Path(name).name for name in before if after[name] != before[name]}
    assert changed == {"engine.log", "cpu-0.lock"}  # and not server.log
    expected = {"evaluate": "cached", "task_analysis": "done", "prompt_analysis": "done"}
    assert states(output) | expected == states(output)
    status = json.loads((output / "task_analysis" / "task_status.json").read_text())
    assert [row["bound"] for row in status["thresholds"]] == [0.5]
