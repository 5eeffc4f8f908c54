"""The history of a model on a device: one small file per run, only ever added, in a local directory or on S3.

Runs are ordered by a number that each takes one higher than all that it sees, not by any host's clock. Two runs that
end at the same moment may take the same number; then their names decide, for every reader alike.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from accuracy_core.errors import AssayError
from accuracy_core.outcome import Banner, Outcome, Verdict
from accuracy_core.schemas import Part, RunDir, Schema, write_text
from accuracy_core.storage.s3_errors import storage_error

if TYPE_CHECKING:
    from accuracy_core.schemas.run_dir import AnyPath

#: runs that a report shows
SHOWN = 30
_FILE = re.compile(r"(\d{8})-([0-9a-f]{32})\.json")


class HistoryScore(Part):
    """One score of a run, in the score's own units."""

    value: float
    stderr: float = float("nan")
    higher_is_better: bool = True
    bound: float = Field(float("nan"), description="threshold that it was held against")
    passed: bool | None = None


class HistoryEntry(Schema):
    """What one run leaves in the history. `sequence` orders runs; `written` is for people."""

    sequence: int = Field(0, ge=0)
    written: datetime
    model: str = ""
    model_fingerprint: str = ""
    device: str = ""
    settings: str = Field("", description="sha256 over what makes two runs comparable: tasks, limits, prompts, plugins")
    fault: str | None = None
    outcome: Outcome
    verdict: Verdict | None = None
    banner: Banner = Banner.GREY
    headline: str = ""
    scores: dict[str, HistoryScore] = Field(default_factory=dict)
    sigma_ratio: float = float("nan")
    agg_bc: float = float("nan")
    worst_guard: str = Field("", description="name of the guard that was exceeded most, '' when none fired")
    worst_value: float = float("nan")
    worst_limit: float = float("nan")
    stage_s: dict[str, float] = Field(default_factory=dict, description="seconds of each stage that was computed")
    cached: list[str] = Field(default_factory=list, description="stages whose results were an earlier run's")
    location: str = ""
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether the engine was asked anything: a report that is drawn again is no new point of the history."""
        return bool({"evaluate", "prompt_analysis"} & set(self.stage_s))


class HistoryWindow(Schema):
    """`history.json` in a run directory: the last runs up to this one, oldest first, as they were when it ended."""

    entries: list[HistoryEntry] = Field(default_factory=list)
    skipped: list[str] = Field(default_factory=list, description="files of the index that could not be read")


class HistoryIndex:
    """Index under `root`, a local path or `s3://…`. Files are never changed, so writers cannot disturb each other."""

    def __init__(self, root: str) -> None:
        self._root = RunDir.at(root).root

    def append(self, entry: HistoryEntry) -> HistoryEntry:
        """Add a run; returns it with its number. Raises ConfigurationError or InfrastructureError."""
        folder = self._folder(entry.model_fingerprint, entry.device)
        try:
            numbered = entry.model_copy(update={"sequence": 1 + max(self._numbers(folder), default=0)})
            name = f"{numbered.sequence:08d}-{uuid.uuid4().hex}.json"
            write_text(folder / name, numbered.to_json())
        except AssayError:
            raise
        except Exception as error:  # a disk's or a bucket's
            raise storage_error(error, f"history {folder}: nothing can be added") from error
        return numbered

    def window(self, model_fingerprint: str, device: str, *, last: int = SHOWN) -> HistoryWindow:
        """The `last` runs of a model on a device, oldest first. Damaged files are named, not believed."""
        folder = self._folder(model_fingerprint, device)
        entries: list[HistoryEntry] = []
        skipped: list[str] = []
        try:
            names = sorted(path.name for path in self._files(folder))[-last:]
            for name in names:
                try:
                    text = (folder / name).read_text(encoding="utf-8")
                    entries.append(HistoryEntry.from_json(text, source=name))
                except (AssayError, UnicodeDecodeError):
                    skipped.append(name)
        except Exception as error:
            raise storage_error(error, f"history {folder} cannot be read") from error
        return HistoryWindow(entries=entries, skipped=skipped)

    def _folder(self, model_fingerprint: str, device: str) -> AnyPath:
        return self._root / f"{model_fingerprint[:24] or 'unknown'}-{re.sub(r'[^A-Za-z0-9_.-]', '_', device)[:60]}"

    def _numbers(self, folder: AnyPath) -> list[int]:
        return [int(match[1]) for path in self._files(folder) if (match := _FILE.fullmatch(path.name))]

    def _files(self, folder: AnyPath) -> list[AnyPath]:
        if isinstance(folder, Path):
            return [path for path in folder.glob("*.json") if _FILE.fullmatch(path.name)]
        return [path for path in folder.iterdir() if _FILE.fullmatch(path.name)] if folder.exists() else []
