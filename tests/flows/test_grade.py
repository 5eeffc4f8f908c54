"""`assay grade` from the command line to result and report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accuracy_core.grading import GradeResult, sandbox
from accuracy_core.grading.result import Baselines, Gate, write_result
from accuracy_core.report import generate_report
from accuracy_core.schemas import RunDir
from flows.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples" / "grading"


def invoke(*words: str):
    return CliRunner().invoke(app, ["grade", *words])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((str(EXAMPLES / "stub.py"), "--task", "bf-16"), "did you mean 'bf16'"),
        (("no/such/file.py",), "is no file"),
        ((str(EXAMPLES / "stub.py"), "--device", "tpu"), "device"),
        ((str(EXAMPLES / "stub.py"), "--scale", "2b"), "scale"),
    ],
)
def test_a_wrong_command_line_exits_with_3_before_anything_starts(words, says):
    done = invoke(*words)
    assert done.exit_code == 3
    assert says in done.output


@pytest.mark.slow
@pytest.mark.skipif(not sandbox.available(), reason="this kernel has no Landlock")
@pytest.mark.parametrize(
    ("name", "code", "passed"),
    [("unfused", 2, [True, False, False]), ("stub", 3, [None, None, None])],
)
def test_exit_code_result_and_report(tmp_path, name, code, passed):
    file = tmp_path / "copy.json"
    done = invoke(
        str(EXAMPLES / f"{name}.py"), "--no-baselines", "--output", str(tmp_path / "run"), "--json", str(file)
    )
    assert done.exit_code == code, done.output
    result = GradeResult.from_json(file.read_text())
    assert ([gate.passed for gate in result.gates], result.score) == (passed, 0)
    assert json.loads((tmp_path / "run" / "grade.json").read_text()) == json.loads(file.read_text())
    assert "Grading" in (tmp_path / "run" / "combined_report.html").read_text()


def test_the_reports_section_says_what_failed_and_escapes_what_the_submission_says(tmp_path):
    run_dir = RunDir.at(tmp_path).create()
    result = GradeResult(
        submission="<b>mine</b>.py", task="fp8", device="cpu", error="ValueError: <script>alert(1)</script>",
        gates=[Gate(name="correct", passed=False, value=0.5, limit=0.02, detail="<img src=x>"),
               Gate(name="launches", limit=8), Gate(name="dominant", limit=0.9)],
        seconds_per_step=0.004,
        baselines=Baselines(eager=0.008, floor=0.001, bandwidth_bytes_per_s=1e10, bytes_per_step=10_000_000,
                            notes={"compiled or graph": "NoCompiler: none"}),
    )  # fmt: skip
    write_result(run_dir, result)
    generate_report(run_dir, conclusion=result.conclusion())
    page = run_dir.report_html.read_text()
    assert "<script>alert(1)" not in page
    assert "<img src=x>" not in page
    assert "&lt;b&gt;mine" in page
    for words in ("relative error of all logits", "not measured", "8×", "NoCompiler: none", "score 0"):
        assert words in page
    assert result.conclusion().exit_code == 2
