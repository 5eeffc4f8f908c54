"""Level 3: single modules of the target against the reference's, each on seeded inputs of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_core.engines.registry import open_engine
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.device import wait_for_cores
from accuracy_core.pipeline.evaluation import local_path
from accuracy_core.pipeline.limits import limits_for
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.schemas import EngineSpec, ModuleParameters, ModuleValidationResult

if TYPE_CHECKING:
    import torch

    from accuracy_core.modules import ModuleExecutor

STAGE = "module_validation"


def check_modules(run: Run) -> ModuleValidationResult:
    """Compare the modules that the run asks for; writes `modules/module_validation.json`, and a page per failure.

    Raises InfrastructureError when the engine dies, NotMeasuredError when it cannot be fed.
    """
    asked = run.parameters.module_validation
    inputs = {"target": run.target_identity, **asked.model_dump(mode="json")}
    with synchronised(run.parameters.output_dir), recorded(run.run_dir, STAGE, inputs, ["modules"]):
        result = _checked(run, asked)
        run.run_dir.write(run.run_dir.module_validation_json, result)
    return result


def _checked(run: Run, asked: ModuleParameters) -> ModuleValidationResult:
    import torch

    from accuracy_core.modules import Plan, validate_modules
    from accuracy_core.modules.figures import failure_page
    from accuracy_core.prompts.goldens import reference_dtype

    folder = local_path(run.run_dir.modules)
    limits = limits_for(run.parameters.prompt_analysis, run.parameters.engine, run.model_fingerprint)
    dtype = getattr(torch, reference_dtype(run.engine))
    with tempfile.TemporaryDirectory(prefix="assay-modules-") as scratch:
        checkpoint = _weights(run, asked, Path(scratch) / "weights")
        with _executor(run, asked, checkpoint, dtype, Path(scratch)) as target:
            result = validate_modules(
                checkpoint,
                target,
                kinds=asked.kinds,
                layers=asked.layers,
                dtype=dtype,
                plan=Plan(asked.n_inputs, asked.prefill, asked.decode, asked.seed),
                tolerances=limits.tolerances if limits is not None else None,
                on_failure=lambda check, compared: Path(failure_page(folder, check, compared)).name,
                progress=lambda done, total, what: progress.report(STAGE, done, total, what),
            )
    return result


def _weights(run: Run, asked: ModuleParameters, folder: Path) -> str:
    """The checkpoint that both sides load."""
    if asked.weights == "real":
        return run.model_path
    from accuracy_core.modules.seeded_weights import seeded_checkpoint

    progress.report(STAGE, message="making seeded weights")
    return str(seeded_checkpoint(Path(run.model_path), folder, asked.seed))


@contextlib.contextmanager
def _executor(
    run: Run, asked: ModuleParameters, checkpoint: str, dtype: torch.dtype, scratch: Path
) -> Iterator[ModuleExecutor]:
    """What runs the target's modules. The engine is loaded on leased cores, and both are given back at the end."""
    if asked.executor == "one_layer":
        from accuracy_core.modules import HfModuleExecutor

        with HfModuleExecutor(checkpoint, dtype) as layers:
            yield layers
        return
    from accuracy_core.goldens.reference_config import load_config
    from accuracy_core.modules.engine_executor import EngineModuleExecutor

    spec: EngineSpec = run.engine.model_copy(update={"model": checkpoint, "tokenizer": run.tokenizer})
    note = f"module validation of {run.model_name}"
    config = load_config(checkpoint, None, spec.hf_overrides or None, trust_remote_code=spec.trust_remote_code)
    with wait_for_cores(spec, STAGE, timeout_s=run.parameters.device_timeout_s, note=note) as lease:
        progress.report(STAGE, message="loading the engine")
        log, patience = local_path(run.run_dir.modules_log), run.parameters.startup_timeout_s
        log.parent.mkdir(parents=True, exist_ok=True)
        with open_engine(spec, lease=lease, log_path=log, startup_timeout_s=patience) as engine:
            yield EngineModuleExecutor(engine, config.get_text_config().to_dict(), scratch)
