"""Looking after a cache: list, verify, collect garbage, export and import `golden.pt`."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens.disk import DiskTier, remove_tree
from accuracy_core.goldens.entry import forget_verified, open_entry
from accuracy_core.goldens.location import cache_directory
from accuracy_core.goldens.metadata import METADATA_NAME, DamagedEntryError, GoldenMetadata
from accuracy_core.goldens.tensor_file import check_tensors

QUARANTINE_DAYS = 7.0
_SHORTEST_PREFIX = 6


@dataclass(frozen=True)
class EntrySummary:
    """One entry of the cache. `problem` is "" for readable metadata; the data is not looked at."""

    key: str
    bytes: int
    last_used: datetime
    model_id: str = ""
    tensors: dict[str, list[list[int]]] = field(default_factory=dict)  # name -> shapes
    created: datetime | None = None
    problem: str = ""


@dataclass(frozen=True)
class GarbageReport:
    """What `collect_garbage` removed."""

    evicted: list[str]
    quarantined_removed: int
    bytes_left: int


def list_entries(cache_dir: str | os.PathLike[str] | None = None) -> list[EntrySummary]:
    """All entries, least recently used first. Reads metadata only."""
    disk, found = DiskTier(cache_directory(cache_dir)), []
    for key in disk.keys():  # noqa: SIM118 - a method of the tier, not of a dict
        folder = disk.folder(key)
        with suppress(FileNotFoundError):
            size = sum(item.stat().st_size for item in folder.iterdir())
            found.append(_summary(folder, key, size))
    return sorted(found, key=lambda entry: entry.last_used)


def _summary(folder: Path, key: str, size: int) -> EntrySummary:
    try:
        used = datetime.fromtimestamp((folder / METADATA_NAME).stat().st_mtime, UTC)
        metadata = GoldenMetadata.parse((folder / METADATA_NAME).read_bytes(), key)
    except (OSError, DamagedEntryError) as error:
        used = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        return EntrySummary(key, size, used, problem=str(error))
    shapes = {name: [record.shape for record in records] for name, records in metadata.tensors.items()}
    model_id = str(metadata.provenance.get("model_id", ""))
    return EntrySummary(key, size, used, model_id, shapes, metadata.created)


def verify_entries(cache_dir: str | os.PathLike[str] | None = None, *, quarantine: bool = True) -> dict[str, str]:
    """Hash every entry anew: key -> "" if it is good, else what is wrong.

    Damaged entries are quarantined unless `quarantine` is false.
    """
    disk, report = DiskTier(cache_directory(cache_dir)), {}
    forget_verified()
    for key in disk.keys():  # noqa: SIM118 - a method of the tier, not of a dict
        try:
            open_entry(disk.folder(key), key)
        except FileNotFoundError:
            continue
        except (DamagedEntryError, OSError) as error:
            report[key] = str(error)
            if quarantine and isinstance(error, DamagedEntryError):
                disk.quarantine(key)
        else:
            report[key] = ""
    return report


def collect_garbage(
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_bytes: int | None = None,
    quarantine_days: float = QUARANTINE_DAYS,
) -> GarbageReport:
    """Remove what dead writers left, quarantined entries older than `quarantine_days`, and least recently used entries
    beyond `max_bytes`. Raises ConfigurationError when the directory cannot be written."""
    disk = DiskTier(cache_directory(cache_dir))
    try:
        disk.prepare()
    except OSError as error:
        raise ConfigurationError(f"golden cache {disk.root} cannot be written: {error}") from error
    removed = 0
    for folder in (disk.root / "quarantine").iterdir():
        with suppress(OSError):
            if folder.stat().st_ctime < time.time() - quarantine_days * 86400:  # ctime: when it was moved there
                remove_tree(folder)
                removed += 1
    evicted = disk.evict(max_bytes) if max_bytes is not None else []
    return GarbageReport(evicted, removed, sum(entry.bytes for entry in list_entries(disk.root)))


def find_key(prefix: str, cache_dir: str | os.PathLike[str] | None = None) -> str:
    """The only key that starts with `prefix`. Raises ConfigurationError if there is none or several."""
    keys = DiskTier(cache_directory(cache_dir)).keys()
    found = [key for key in keys if key.startswith(prefix)] if len(prefix) >= _SHORTEST_PREFIX else []
    if len(found) != 1:
        raise ConfigurationError(
            f"{prefix!r} names {len(found) or 'no'} golden{'s' if len(found) != 1 else ''} in the cache",
            fix=f"give at least {_SHORTEST_PREFIX} digits of a key that `goldens ls` shows",
        )
    return found[0]


def export_golden_pt(key: str, target: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Write the golden `key` (or a unique prefix) as `golden.pt`, a `torch.save`d dict of names to lists of tensors.

    `target` is a file name, or an existing folder. Raises ConfigurationError if the golden is missing or damaged.
    """
    disk = DiskTier(cache_directory(cache_dir))
    found = find_key(key, disk.root)
    try:
        entry = open_entry(disk.folder(found), found)
    except (DamagedEntryError, OSError) as error:
        raise ConfigurationError(f"golden {found} cannot be exported: {error}", fix="run `goldens verify`") from error
    path = Path(target)
    path = path / "golden.pt" if path.is_dir() else path
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save({name: entry.file.load(name) for name in entry.file.names()}, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read_golden_pt(path: str | os.PathLike[str]) -> dict[str, list[torch.Tensor]]:
    """Tensors of a `golden.pt` from elsewhere. A single tensor counts as a list of one.

    Nothing but tensors is unpickled. Raises ConfigurationError for a file that holds anything else, ReferenceError_ for
    NaN and infinities.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make the restricted unpickler raise nearly anything
        raise ConfigurationError(
            f"{path} is no golden.pt that can be read safely: {type(error).__name__}",
            fix="export it again as a dict of names to lists of tensors",
        ) from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} holds a {type(content).__name__}, not a dict of names to lists of tensors")
    lists = {name: [value] if isinstance(value, torch.Tensor) else value for name, value in content.items()}
    return check_tensors(lists)
