"""What a finished stage left: a small reference to its files with their digests, and how they are had again."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pydantic import Field

from accuracy_core.schemas import Part, RunDir, Schema

if TYPE_CHECKING:
    from accuracy_core.schemas.run_dir import AnyPath

#: where the prompt analysis and its plugins write. Never "whatever else is there": a directory may hold a user's
#: own files, and results that are not wanted any more are removed
_PROMPT_FOLDERS = ("prompt_analysis", "tensor_compare")
_EVALUATION, _TASKS, _PROMPTS, _MODULES = "evaluate", "task_analysis", "prompt_analysis", "module_validation"
_PREFLIGHT = ("preflight", "preflight_requests")


class StageFile(Part):
    """One file; `path` is relative to the run directory, with slashes."""

    path: str
    size: int = Field(ge=0)
    sha256: str


class StageFiles(Schema):
    """Reference to the results of a stage under `root`, a run directory. It is what a cache keeps; never the files."""

    stage: str
    key: str = Field(description="key of the stage's inputs")
    root: str = Field(description="run directory, local or s3://")
    complete: bool = Field(description="False: something was not measured, a later run must try again")
    files: list[StageFile] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list, description="`outputs` of the stage's record")


def stage_paths(root: Path, stage: str) -> list[Path]:
    """Files under `root` that are the results of `stage`, in order of their names; logs are no results."""
    if stage == _EVALUATION:
        return sorted(path for path in (root / "eval_results").glob("*/*") if _is_evaluation(path))
    if stage == _TASKS:
        return _below(root / "task_analysis")
    if stage == _MODULES:
        return [path for path in _below(root / "modules") if path != root / "modules" / "engine.log"]
    if stage in _PREFLIGHT:
        return [path for path in _below(root / "preflight") if path.stem == stage]
    if stage != _PROMPTS:
        raise ValueError(f"stage {stage!r} has no results of its own")
    paths = [path for name in _PROMPT_FOLDERS for path in _below(root / name)]
    return [path for path in paths if not (path.parent == root / "prompt_analysis" and path.suffix == ".log")]


def describe(run_dir: RunDir, stage: str, key: str, *, root: str, complete: bool, outputs: list[str]) -> StageFiles:
    """Reference to what `stage` has just left in the local `run_dir`, which others know as `root`."""
    here = _local(run_dir)
    files = [
        StageFile(path=path.relative_to(here).as_posix(), size=path.stat().st_size, sha256=_sha256(path))
        for path in stage_paths(here, stage)
    ]
    return StageFiles(stage=stage, key=key, root=root, complete=complete, files=files, outputs=outputs)


def bring_back(found: StageFiles, run_dir: RunDir) -> bool:
    """Make the results of `found` those of the local `run_dir`, and nothing else of that stage. False: not to be had.

    Every file is checked against its digest before anything in `run_dir` is touched: a result of which one byte is
    missing or different is worth nothing.
    """
    here = _local(run_dir)
    if not found.files or not all(_is_inside(file.path) for file in found.files):
        return False
    if all(_matches(here / file.path, file) for file in found.files):
        _remove_others(here, found)
        return True
    source = RunDir.at(found.root)
    if source.root == here:
        return False
    here.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=here, prefix=".bring-") as folder:
        for file in found.files:
            copy = Path(folder, file.path)
            if not _copied(source.root / file.path, copy) or not _matches(copy, file):
                return False
        for file in found.files:
            target = here / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(folder, file.path), target)
    _remove_others(here, found)
    return True


def keep_only(run_dir: RunDir, stage: str, wanted: Iterable[Path]) -> None:
    """Remove results of `stage` that lie in the local `run_dir` and are not `wanted`."""
    keep = {path.resolve() for path in wanted}
    for path in stage_paths(_local(run_dir), stage):
        if path.resolve() not in keep:
            path.unlink()


def _remove_others(here: Path, found: StageFiles) -> None:
    keep_only(RunDir(here), found.stage, [here / file.path for file in found.files])


def _local(run_dir: RunDir) -> Path:
    if not isinstance(run_dir.root, Path):
        raise TypeError(f"{run_dir.root} is not local: work in a copy of it")
    return run_dir.root


def _is_evaluation(path: Path) -> bool:
    return path.is_file() and path.name.startswith(("results_", "samples_", "requests_"))


def _below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _is_inside(path: str) -> bool:
    """A reference may come from a bucket: it must not name anything outside a run directory."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts


def _copied(source: AnyPath, target: Path) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if isinstance(source, Path):
            shutil.copyfile(source, target)
        else:
            source.download_to(target)
    except Exception:  # a bucket's client raises a dozen unrelated types; whatever it is, the file is not to be had
        return False
    return True


def _matches(path: Path, file: StageFile) -> bool:
    try:
        return path.stat().st_size == file.size and _sha256(path) == file.sha256
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
