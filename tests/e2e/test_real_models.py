"""Real checkpoints, where `$ASSAY_REAL_MODELS` names folders of them (separated as in `$PATH`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accuracy_core.prompts.preflight import PreflightReport
from accuracy_core.schemas import EngineSpec, PromptParameters, RunDir, RunParameters

FOLDERS = [folder for folder in os.environ.get("ASSAY_REAL_MODELS", "").split(os.pathsep) if folder]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDERS, reason="$ASSAY_REAL_MODELS names no checkpoint")]


@pytest.mark.parametrize("folder", FOLDERS)
def test_float32_passes_and_the_preflight_finds_no_error(folder: str, tmp_path: Path) -> None:
    from flows.local_api import local_api
    from flows.logit_regression import logit_regression

    parameters = RunParameters(
        engine=EngineSpec(model=folder, dtype="float32", max_model_len=512),
        prompt_analysis=PromptParameters(output_length=4),
        output_dir=str(tmp_path),
    )
    with local_api():
        state = logit_regression(parameters, return_state=True)
    run_dir = RunDir.at(tmp_path)
    assert run_dir.read(run_dir.preflight_json, PreflightReport).errors == []
    assert state.is_completed(), state.message
