"""The device of an evaluation: a start that failed gives the cores back, so that a second try can have them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accuracy_core.engines.cores import cores_free
from accuracy_core.errors import AssayError, DeviceBusyError
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.session import EvaluationSession
from accuracy_core.schemas import EngineSpec, Platform, RunParameters

FAKE = Path(__file__).resolve().parents[1] / "engines" / "fake_python.py"


@pytest.fixture
def run(tmp_path):
    """`run(mode)`: a run whose engine is a fake in that mode."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n" + FAKE.read_text())
    script.chmod(0o755)

    def make(mode: str) -> Run:
        engine = EngineSpec(model="embedded", python=str(script), env={"FAKE": mode})
        parameters = RunParameters(engine=engine, output_dir=str(tmp_path), device_timeout_s=0, startup_timeout_s=20)
        from accuracy_core.models import resolve_model

        return Run(
            parameters=parameters,
            model_path=str(resolve_model("embedded")),
            model_name="tiny-llama",
            model_fingerprint="f",
            target_identity="t",
        )

    return make


def test_a_failed_start_can_be_tried_again(run, tmp_path):
    with EvaluationSession(run("die"), tmp_path / "server.log") as session:
        for _ in range(2):
            with pytest.raises(AssayError) as caught:
                session.server()
            assert not isinstance(caught.value, DeviceBusyError)
    assert cores_free(Platform.CPU)


def test_leaving_the_session_stops_the_server_and_frees_the_cores(run, tmp_path):
    with EvaluationSession(run(""), tmp_path / "server.log") as session:
        server = session.server()
        assert server.alive
        assert session.server() is server
        assert not cores_free(Platform.CPU)
    assert not server.alive
    assert cores_free(Platform.CPU)
