"""Finding the files of the newest run in an lm-eval output directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.readers.text_files import read_text

_STAMP = re.compile(r"_(\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?)$")
_LARGEST_UNNAMED = 64 << 20  # bytes; larger JSON files are looked into only when their name says results
#: files of ours that lie beside lm-eval's
_NOT_SAMPLES = ("requests_",)


@dataclass
class RunFiles:
    """Files of one run. `stamp` is the time in their names, '' where names carry none (before 0.4.3)."""

    results: Path | None
    samples: list[Path]
    stamp: str = ""
    requests: Path | None = None
    warnings: list[str] = field(default_factory=list)


def locate(path: Path) -> RunFiles:
    """Files of the newest run at `path`: a directory, a results file, or a single samples file.

    Raises ConfigurationError when there is nothing, or when the directory holds runs of several models.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist", fix="give lm-eval's output directory or results file")
    if path.is_file():
        return _single_file(path)
    files = sorted(item for item in path.rglob("*") if item.is_file())
    results = [item for item in files if item.suffix == ".json" and _is_results(item)]
    samples = [item for item in files if item.suffix == ".jsonl" and not item.name.startswith(_NOT_SAMPLES)]
    if not results:  # any other .jsonl could be anything
        samples = [item for item in samples if item.name.startswith("samples_")]
    if not results and not samples:
        raise ConfigurationError(
            f"no lm-eval results in {path}", fix="give the directory that holds results_*.json and samples_*.jsonl"
        )
    _one_model_only(path, results or samples)
    stamped = {stamp for item in results or samples if (stamp := stamp_of(item))}
    if not stamped:
        return _unstamped(path, results, samples)
    newest = max(stamped)
    run = RunFiles(
        results=next((item for item in results if stamp_of(item) == newest), None),
        samples=[item for item in samples if stamp_of(item) == newest],
        stamp=newest,
        requests=next((item for item in files if item.name == f"requests_{newest}.jsonl"), None),
    )
    for stamp in sorted(stamped - {newest}):
        run.warnings.append(f"the older run {stamp} in the same directory was left out")
    return run


def stamp_of(path: Path) -> str:
    """The time in a file name as lm-eval writes it, or ''."""
    found = _STAMP.search(path.stem)
    return found.group(1) if found else ""


def task_of(path: Path, tasks: Iterable[str]) -> str:
    """The task whose samples a file holds: `samples_<task>_<time>`, or before 0.4.3 `<model arguments>_<task>`.

    There a task's name may end another's; the longest that fits wins.
    """
    stem = _STAMP.sub("", path.stem)
    if stem.startswith("samples_"):
        return stem.removeprefix("samples_")
    fits = [task for task in tasks if stem == task or stem.endswith(f"_{task}")]
    return max(fits, key=len, default=stem)


def _single_file(path: Path) -> RunFiles:
    if path.suffix == ".jsonl":
        return RunFiles(results=None, samples=[path], stamp=stamp_of(path))
    stamp = stamp_of(path)
    beside = sorted(item for item in path.parent.glob("*.jsonl") if not item.name.startswith(_NOT_SAMPLES))
    requests = path.parent / f"requests_{stamp}.jsonl"
    return RunFiles(
        results=path,
        samples=[item for item in beside if stamp_of(item) == stamp],
        stamp=stamp,
        requests=requests if requests.is_file() else None,
    )


def _unstamped(path: Path, results: list[Path], samples: list[Path]) -> RunFiles:
    if len(results) > 1:
        raise ConfigurationError(
            f"{path} holds {len(results)} results files without a time in their names: "
            f"{', '.join(item.name for item in results[:8])}",
            fix="give the one you mean",
        )
    return RunFiles(results=results[0] if results else None, samples=samples)


def _one_model_only(path: Path, files: list[Path]) -> None:
    """lm-eval writes one folder per model; two such folders are two runs that must not be mixed."""
    folders = sorted({item.parent for item in files})
    if len(folders) > 1:
        names = [str(folder.relative_to(path)) for folder in folders]
        raise ConfigurationError(
            f"{path} holds results of {len(folders)} models: {', '.join(names[:8])}",
            fix=f"give one of them, e.g. {folders[0]}",
        )
    models = {model for item in files if item.suffix == ".json" and (model := _model_in(item))}
    if len(models) > 1:
        raise ConfigurationError(
            f"{path} holds results of {len(models)} models: {', '.join(sorted(models)[:8])}",
            fix="give one results file",
        )


def _is_results(path: Path) -> bool:
    """By content; a file that is named so and cannot be read counts too, for that must be said."""
    named = path.name.startswith("results")
    if not named and path.stat().st_size > _LARGEST_UNNAMED:
        return False
    try:
        raw = json.loads(read_text(path))
    except (OSError, ValueError):
        return named
    return isinstance(raw.get("results"), dict) if isinstance(raw, dict) else named


def _model_in(path: Path) -> str:
    try:
        raw = json.loads(read_text(path))
        return str(raw.get("model_name") or "")
    except (OSError, ValueError, AttributeError):
        return ""
