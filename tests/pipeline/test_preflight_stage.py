"""The preflight stage: fourteen wrong set-ups end a run with their fix, right ones do not, and a user may insist."""

from __future__ import annotations

from pathlib import Path

import pytest

from accuracy_core.engines.load_report import load_report_path
from accuracy_core.errors import ConfigurationError
from accuracy_core.models.architectures import ARCHITECTURES, architecture_checkpoint
from accuracy_core.outcome import Outcome
from accuracy_core.pipeline.preflight_findings import check_loaded
from accuracy_core.pipeline.preflight_stage import REQUESTS, STAGE, check_requests, check_setup
from accuracy_core.pipeline.run import Run, resolve_run
from accuracy_core.prompts.conclusion import conclude
from accuracy_core.prompts.preflight import PreflightReport
from accuracy_core.schemas import RunParameters, StageRecord
from tests.pipeline.configuration_faults import FAULTS
from tests.pipeline.setups import right_setup

#: of the architectures, those that differ most in embeddings, rotary scaling, windows and experts
CLEAN = ("llama", "llama-tied", "llama3-rope", "qwen3", "mistral-window", "gemma2", "gemma3", "mixtral")


def preflight(run: Run) -> PreflightReport:
    """Both parts, as a flow makes them."""
    check_setup(run)
    return check_requests(run)


def written(run: Run) -> PreflightReport:
    return run.run_dir.read(run.run_dir.preflight_json, PreflightReport)


def status(run: Run, stage: str) -> StageRecord:
    return run.run_dir.read(run.run_dir.stages / f"{stage}.json", StageRecord)


def test_fourteen_faults():
    assert len(FAULTS) == 14


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_wrong_set_up_ends_the_run_with_its_fix(tmp_path, fault):
    setup = right_setup(tmp_path)
    fault.inject(setup)
    run = setup.run(tmp_path / "out")
    if fault.seen:
        check_setup(run)  # nothing to be seen before the requests are
    with pytest.raises(ConfigurationError) as raised:
        preflight(run)
    decided = conclude(None, None, error=raised.value)
    assert (decided.outcome, decided.exit_code, decided.state) == (Outcome.CONFIGURATION, 3, "ConfigurationFailed")
    errors = written(run).errors
    assert fault.finding in {item.check for item in errors}
    assert any(fault.fix in item.fix for item in errors if item.check == fault.finding)
    for item in errors:
        assert item.evidence in decided.headline
        assert item.fix in decided.fix
    record = status(run, REQUESTS if fault.seen else STAGE)
    assert (record.status, record.outcome) == ("failed", Outcome.CONFIGURATION)
    assert not (run.run_dir.stages / "goldens.json").exists()


@pytest.mark.parametrize("chat", [False, True])
def test_a_right_set_up_goes_on(tmp_path, chat):
    setup = right_setup(tmp_path)
    setup.chat = chat
    run = setup.run(tmp_path / "out")
    report = preflight(run)
    assert report.errors == []
    assert report.not_measured == []
    assert (status(run, STAGE).status, status(run, REQUESTS).status) == ("done", "done")


@pytest.mark.parametrize("name", CLEAN)
def test_clean_architectures_have_no_error(tmp_path, name):
    assert name in ARCHITECTURES
    given = {"engine": {"model": str(architecture_checkpoint(name))}, "output_dir": str(tmp_path), "stages": [STAGE]}
    report = check_setup(resolve_run(RunParameters.model_validate(given), engine_here=False))
    assert report.errors == []
    assert report.not_measured == []


@pytest.mark.parametrize(
    ("fault", "check"), [("fp16 on bf16", "dtype"), ("double BOS", "tokens"), ("truncated generations", "truncation")]
)
def test_what_is_meant_so_stays_visible_and_does_not_stop(tmp_path, fault, check):
    setup = right_setup(tmp_path)
    FAULTS[fault].inject(setup)
    report = preflight(setup.run(tmp_path / "out", preflight={"accept": [check]}))
    assert report.errors == []
    (accepted,) = [result for result in report.results if result.standing == "accepted"]
    assert accepted.check == check
    (note,) = [note for note in conclude(None, None, preflight=report).notes if note.startswith("preflight")]
    assert f"{check} (accepted): {accepted.findings[0].evidence}" in note


def test_accepting_one_error_leaves_the_others(tmp_path):
    setup = right_setup(tmp_path)
    for fault in ("fp16 on bf16", "sampling default"):
        FAULTS[fault].inject(setup)
    with pytest.raises(ConfigurationError, match="2 errors") as both:
        check_setup(setup.run(tmp_path / "a"))
    assert "--accept dtype --accept sampling_defaults" in both.value.fix
    with pytest.raises(ConfigurationError, match="preflight, sampling_defaults"):
        check_setup(setup.run(tmp_path / "b", preflight={"accept": ["dtype"]}))


def test_a_check_that_does_not_exist_cannot_be_accepted(tmp_path):
    with pytest.raises(ConfigurationError, match="dtyp") as raised:
        right_setup(tmp_path).run(tmp_path / "out", preflight={"accept": ["dtyp"]})
    assert "dtype" in raised.value.fix


def test_a_conversation_without_a_template_ends_before_anything_is_started(tmp_path):
    setup = right_setup(tmp_path)
    results = setup.results()
    setup.edit("tokenizer_config.json", chat_template=None)
    (setup.model / "chat_template.jinja").unlink(missing_ok=True)
    given = {
        "engine": {"model": str(setup.model)},
        "evaluation": {"results": str(results), "chat": True},
        "output_dir": str(tmp_path / "out"),
    }
    with pytest.raises(ConfigurationError, match="no chat template") as raised:
        check_setup(resolve_run(RunParameters.model_validate(given), engine_here=False))
    assert "--chat" in raised.value.fix


def test_a_repeated_preflight_forgets_what_the_first_one_said(tmp_path):
    setup = right_setup(tmp_path)
    setup.ids = lambda ids: ids[1:]
    with pytest.raises(ConfigurationError):
        preflight(setup.run(tmp_path / "out"))
    setup.ids = list
    assert preflight(setup.run(tmp_path / "out")).errors == []


def test_weights_that_the_engine_did_not_find(tmp_path):
    run = right_setup(tmp_path).run(tmp_path / "out")
    log: Path = run.run_dir.server_log  # type: ignore[assignment]
    log.parent.mkdir(parents=True, exist_ok=True)
    check_setup(run)
    check_loaded(run, log)  # an engine that says nothing
    path = load_report_path(log)
    path.write_text(f'{{"model": "{run.model_path}", "missing": ["model.norm.weight"], "error": ""}}', "utf-8")
    with pytest.raises(ConfigurationError, match=r"target: 1 weights .* model\.norm\.weight"):
        check_loaded(run, log)
    assert [result.check for result in written(run).results if result.errors] == ["engine_weights"]
    path.write_text('{"model": "/another", "missing": ["model.norm.weight"], "error": ""}', "utf-8")
    check_loaded(run, log)  # left by an engine of another model


def test_weights_that_may_be_missing_in_the_engine(tmp_path):
    run = right_setup(tmp_path).run(tmp_path / "out", preflight={"accept": ["engine_weights"]})
    log: Path = run.run_dir.engine_log  # type: ignore[assignment]
    log.parent.mkdir(parents=True, exist_ok=True)
    missing = f'{{"model": "{run.model_path}", "missing": ["model.norm.weight"], "error": ""}}'
    load_report_path(log).write_text(missing, "utf-8")
    check_loaded(run, log)
    assert [result.standing for result in written(run).results] == ["accepted"]
