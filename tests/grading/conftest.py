"""Small tasks and the right fused step that the tests of the grader share."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from accuracy_core.grading import TASKS, GradeResult, grade, sandbox

EXAMPLES = Path(__file__).parents[2] / "examples" / "grading"
ASSETS = Path(__file__).parent / "assets"
SMALL = replace(
    TASKS["bf16"].config, layers=2, hidden=64, ffn=128, heads=2, kv_heads=1, head_dim=32, vocab=512, context=16
)
TASK = replace(TASKS["bf16"], config=SMALL, steps=4, sequences=2, timed_repeats=2, time_limit_s=20)

confinable = pytest.mark.skipif(not sandbox.available(), reason="this kernel has no Landlock")


def gates(result: GradeResult) -> dict[str, bool | None]:
    return {gate.name: gate.passed for gate in result.gates}


def run(path: Path, task=TASK, **settings) -> GradeResult:
    return grade(path, task, baselines=False, **settings)


@pytest.fixture(scope="session")
def fused(tmp_path_factory) -> Path:
    """The right fused step with its library compiled beside it."""
    folder = tmp_path_factory.mktemp("fused")
    shutil.copy(ASSETS / "fused_right.py", folder)
    subprocess.run(
        ["g++", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-shared", "-fPIC", "-o",
         str(folder / "fused_step.so"), str(ASSETS / "fused_step.cpp")], check=True,
    )  # fmt: skip
    return folder / "fused_right.py"


@pytest.fixture
def submit(tmp_path, fused):
    """Grade a text as a submission, the right fused step at hand as `fused_right`."""

    def graded(source: str, **settings) -> GradeResult:
        folder = tmp_path / "submission"
        shutil.copytree(fused.parent, folder)
        (folder / "mine.py").write_text(source)
        return run(folder / "mine.py", replace(TASK, time_limit_s=8), **settings)

    return graded
