"""Environment of an engine's process: scrubbed of ours, offline where it can be, deterministic where it matters."""

from __future__ import annotations

import json
import os
from pathlib import Path

from accuracy_core.engines.checkpoint import effective_config
from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.injected import injected_fault
from accuracy_core.engines.interpreter import FOREIGN_VARIABLES
from accuracy_core.schemas import EngineSpec, Platform

#: folder that is put on the engine's PYTHONPATH; `assay_inside` in it runs there
INSIDE = Path(__file__).with_name("inside")
#: the fault to inject, as JSON; read by `assay_inside.extension`
FAULT_VARIABLE = "ASSAY_FAULT"
#: a worker extension that the user has in `engine_args` besides ours
USER_EXTENSION_VARIABLE = "ASSAY_USER_EXTENSION"
EXTENSION = "assay_inside.extension.WorkerExtension"


def engine_environment(
    spec: EngineSpec, lease: CoreLease | None, *, python: Path, scratch: Path, model: str
) -> dict[str, str]:
    """Environment for an engine of `spec` on the leased cores. `spec.env` has the last word.

    `scratch` is private to this engine: its TMPDIR is made there. `model` is the resolved checkpoint; the Hub is
    switched off only when it is a local folder.
    """
    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    # An empty VLLM_ variable is not "unset" to vLLM: VLLM_CPU_KVCACHE_SPACE="" ends in int('').
    environment = {key: value for key, value in environment.items() if value or not key.startswith("VLLM_")}
    temporary = scratch / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    environment |= {
        "PATH": f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}",
        "PYTHONPATH": str(INSIDE),
        "PYTHONSAFEPATH": "1",  # `python -m` would put the working directory before the engine's own packages
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if Path(model).is_dir():
        environment |= {"HF_HUB_OFFLINE": "1"}
    if spec.platform is Platform.CPU:
        environment |= _cpu_environment(spec)
    fault = injected_fault(spec, effective_config(spec, model)) if spec.fault is not None else None
    if fault is not None:
        environment[FAULT_VARIABLE] = json.dumps(fault.to_dict())
    user_extension = spec.engine_args.get("worker_extension_cls")
    if user_extension:
        environment[USER_EXTENSION_VARIABLE] = str(user_extension)
    if lease is not None:
        environment |= lease.environment()
    return environment | spec.env


def _cpu_environment(spec: EngineSpec) -> dict[str, str]:
    """Fixed thread counts (their number changes bits), and one process fewer: both measured in vLLM 0.32."""
    threads = str(spec.num_threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        **({"TORCHDYNAMO_DISABLE": "1"} if spec.engine_args.get("enforce_eager", True) else {}),
    }
