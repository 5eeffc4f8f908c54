"""The calls that every flow makes: they check when the run names the stage, show findings, and let errors through."""

from __future__ import annotations

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.pipeline.preflight_stage import REQUESTS, STAGE
from accuracy_core.prompts.preflight.registry import doubtful
from accuracy_core.prompts.preflight.report import CheckResult, PreflightReport
from tasks import preflight
from tests.pipeline.setups import right_setup

CALLS = (
    ("require_right_setup", STAGE, "preflight_task"),
    ("require_right_requests", REQUESTS, "preflight_requests_task"),
)
REPORT = PreflightReport(
    results=[
        CheckResult(check="dtype", needs="checkpoint", findings=[doubtful("dtype", "found", "fix")]),
        CheckResult(check="rope", needs="checkpoint"),
    ]
)


@pytest.fixture
def tables(monkeypatch):
    """Rows of the artifacts that were made."""
    made: list[list[dict[str, str]]] = []
    monkeypatch.setattr(preflight, "create_table_artifact", lambda rows, **_: made.append(rows))
    return made


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch):
    monkeypatch.setattr(preflight, "obtain_stage", lambda run, stage, key, compute, complete: compute())


def write_part(run, stage):
    run.run_dir.write(run.run_dir.preflight_part(stage), REPORT)


@pytest.mark.parametrize(("call", "stage", "task"), CALLS)
def test_a_run_that_leaves_it_out_checks_nothing(tmp_path, monkeypatch, tables, call, stage, task):
    monkeypatch.setattr(preflight, task, lambda run: pytest.fail("it was checked"))
    run = right_setup(tmp_path).run(tmp_path / "out", stages=["task_analysis"])
    getattr(preflight, call)(run)
    assert tables == []


@pytest.mark.parametrize(("call", "stage", "task"), CALLS)
def test_findings_are_shown(tmp_path, monkeypatch, tables, call, stage, task):
    run = right_setup(tmp_path).run(tmp_path / "out", stages=["preflight"])
    monkeypatch.setattr(preflight, task, lambda _: write_part(run, stage))
    getattr(preflight, call)(run)
    assert tables == [[{"check": "dtype", "says": "doubtful", "found": "found", "what to do": "fix"}]]


@pytest.mark.parametrize(("call", "stage", "task"), CALLS)
def test_what_an_earlier_run_found_joins_what_this_one_did(tmp_path, monkeypatch, tables, call, stage, task):
    """Of a cached part only its own file comes back: the whole report is made of the parts."""
    run = right_setup(tmp_path).run(tmp_path / "out", stages=["preflight"])
    other = CheckResult(check="tokens", needs="requests")
    run.run_dir.write(run.run_dir.preflight_json, PreflightReport(results=[other]))
    write_part(run, stage)
    monkeypatch.setattr(preflight, "obtain_stage", lambda *_, **__: True)
    monkeypatch.setattr(preflight, task, lambda run: pytest.fail("it was checked again"))
    getattr(preflight, call)(run)
    whole = run.run_dir.read(run.run_dir.preflight_json, PreflightReport)
    assert whole.checks == (["dtype", "rope"] if stage == STAGE else ["tokens", "dtype", "rope"])


@pytest.mark.parametrize(("call", "stage", "task"), CALLS)
def test_errors_are_shown_and_raised(tmp_path, monkeypatch, tables, call, stage, task):
    run = right_setup(tmp_path).run(tmp_path / "out", stages=["preflight"])

    def refuse(_: object) -> None:
        run.run_dir.write(run.run_dir.preflight_json, REPORT)
        raise ConfigurationError("wrong", fix="this way")

    monkeypatch.setattr(preflight, task, refuse)
    with pytest.raises(ConfigurationError, match="this way"):
        getattr(preflight, call)(run)
    assert [row["check"] for row in tables[0]] == ["dtype"]
