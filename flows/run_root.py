"""Where runs that were not given a directory put theirs."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

from prefect.runtime import flow_run

from accuracy_core.pipeline.run import with_output_dir
from accuracy_core.schemas import RunParameters
from flows.current_run import under_worker

#: folder, or s3:// location, of the runs that workers make
RUNS_DIR = "ASSAY_RUNS_DIR"
DEFAULT_RUNS_DIR = "~/assay-runs"


def runs_root() -> str:
    """The folder, or s3:// location, of runs that were given no directory."""
    return os.environ.get(RUNS_DIR) or (os.path.expanduser(DEFAULT_RUNS_DIR) if under_worker() else "runs")


def with_run_directory(parameters: RunParameters, *, part: str | None = None) -> RunParameters:
    """`parameters` with an output directory.

    Under a worker the working directory is a temporary one, and two runs may start in the same second: there the
    directory is `$ASSAY_RUNS_DIR/<model>-<time>-<id of the flow run>`, and a given relative one is below
    `$ASSAY_RUNS_DIR`. `part` names one of several runs of the current
    flow run: `<root>/nightly-<time>-<id>/<part>`.
    """
    given = parameters.output_dir
    if not under_worker() and (given is not None or part is None):
        return with_output_dir(parameters)
    root = runs_root()
    if given is not None:
        absolute = "://" in given or os.path.isabs(os.path.expanduser(given))
        return parameters if absolute else parameters.model_copy(update={"output_dir": f"{root.rstrip('/')}/{given}"})
    model = parameters.engine.model.rstrip("/").rsplit("/", 1)[-1]
    began = flow_run.scheduled_start_time or datetime.now(UTC)  # the same for all parts
    name = f"{'nightly' if part else model}-{began:%Y%m%d-%H%M%S}-{str(flow_run.id)[:8]}"
    if part:
        name += "/" + re.sub(r"[^A-Za-z0-9._#-]+", "-", part)
    return parameters.model_copy(update={"output_dir": f"{root.rstrip('/')}/{name}"})
