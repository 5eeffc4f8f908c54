"""The results of a run, from its run directory: on S3, or on a disk that this machine shares."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from accuracy_core.errors import InfrastructureError, NotMeasuredError
from accuracy_core.schemas import RunDir
from accuracy_core.storage.s3_errors import storage_error
from flows.remote.api import PrefectApi, Refused

#: what a pipeline keeps
RESULTS = ("report.json", "junit.xml", "combined_report.html")
_PAGE = "/combined_report.html"


def run_location(api: PrefectApi, run_id: str) -> str | None:
    """Run directory of a run that has written its report; None when it has not."""
    wanted = {"artifacts": {"flow_run_id": {"any_": [run_id]}, "key": {"any_": ["report"]}}, "sort": "CREATED_DESC"}
    try:
        found: list[dict[str, Any]] = api.post("/artifacts/filter", wanted)
    except Refused as refused:
        raise InfrastructureError(f"the artifacts of run {run_id} cannot be read: {refused}") from refused
    for artifact in found:
        match = re.search(r"\(((?:file|s3)://.*)\)\s*$", str(artifact.get("data")), re.DOTALL)
        if match and match[1].endswith(_PAGE):
            return match[1].removesuffix(_PAGE).removeprefix("file://")
    return None


def fetch(location: str, folder: Path) -> list[Path]:
    """Copy the results into `folder`. Raises NotMeasuredError where this machine cannot see `location`."""
    run_dir = RunDir.at(location)
    if run_dir.is_local and not run_dir.root.exists():
        raise NotMeasuredError(
            f"{location} is on the disk of another machine",
            fix="let the workers write to a shared place: ASSAY_RUNS_DIR or output_dir with s3://",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return [target for name in RESULTS if (target := _copy(run_dir, name, folder)) is not None]


def _copy(run_dir: RunDir, name: str, folder: Path) -> Path | None:
    source, target = run_dir.root / name, folder / name
    try:
        if not source.exists():
            return None
        if isinstance(source, Path):
            shutil.copyfile(source, target)
        else:
            source.download_to(target)
    except Exception as error:  # a bucket's client raises a dozen unrelated types
        raise storage_error(error, f"{source} cannot be read") from error
    return target
