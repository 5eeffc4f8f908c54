"""Real checkpoints, where `$ASSAY_REAL_MODELS` names folders of them (separated as in `$PATH`).

What they are: SmolLM2-135M and Gemma-3-270M, see `benchmarks/real_models.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.preflight import PreflightReport
from accuracy_core.schemas import (
    EngineSpec,
    EvalParameters,
    PromptAnalysisStatus,
    PromptParameters,
    RunDir,
    RunParameters,
)

FOLDERS = [folder for folder in os.environ.get("ASSAY_REAL_MODELS", "").split(os.pathsep) if folder]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDERS, reason="$ASSAY_REAL_MODELS names no checkpoint")]
MODELS = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: Path(folder).name)


def _engine(folder: str, dtype: str) -> EngineSpec:
    return EngineSpec(model=folder, dtype=dtype, max_model_len=512)  # type: ignore[arg-type]


@MODELS
def test_float32_passes_the_regression_and_the_preflight_finds_no_error(folder: str, tmp_path: Path) -> None:
    from flows.local_api import local_api
    from flows.logit_regression import logit_regression

    parameters = RunParameters(
        engine=_engine(folder, "float32"),
        prompt_analysis=PromptParameters(output_length=4),
        output_dir=str(tmp_path),
    )
    with local_api():
        state = logit_regression(parameters, return_state=True)
    run_dir = RunDir.at(tmp_path)
    assert run_dir.read(run_dir.preflight_json, PreflightReport).errors == []
    assert state.is_completed(), state.message
    assert _logits(run_dir).verdict is Verdict.PASS


@MODELS
def test_the_whole_pipeline_passes_in_float32(folder: str, tmp_path: Path) -> None:
    from flows.accuracy_debugger import accuracy_debugger
    from flows.local_api import local_api

    parameters = RunParameters(
        engine=_engine(folder, "float32"),
        thresholds={"exact_match,strict-match": 0.0},  # what such a model scores is not the question
        evaluation=EvalParameters(tasks=["assay_arith"], limit=4),
        prompt_analysis=PromptParameters(max_prompts=2, output_length=8),
        output_dir=str(tmp_path),
    )
    with local_api():
        state = accuracy_debugger(parameters, return_state=True)
    run_dir = RunDir.at(tmp_path)
    status = _logits(run_dir)
    assert state.is_completed(), state.message
    assert (status.outcome, status.verdict) == (Outcome.NUMERICS, Verdict.PASS)
    assert len(status.per_prompt) == 2
    assert run_dir.report_html.exists()


@MODELS
def test_bfloat16_blames_no_module(folder: str, tmp_path: Path) -> None:
    """Rows of logits may be off (docs/logit-regression.md says which and why); every module is right by itself."""
    from accuracy_core.prompts import run_prompt_analysis

    texts = ["The capital of France is", " ha" * 40]
    steps = ["logit_validation", "tensor_compare"]
    status = run_prompt_analysis(_engine(folder, "bfloat16"), texts, steps, tmp_path, 8, triage=False).status
    assert status.plugins["tensor_compare"].verdict is Verdict.PASS
    assert status.culprit is None or status.culprit.module is None


def _logits(run_dir: RunDir):  # type: ignore[no-untyped-def]
    return run_dir.read(run_dir.prompt_analysis_json, PromptAnalysisStatus).plugins["logit_validation"]
