"""Whole caches to and from the shared store: fill a team's bucket once, or a machine that will be offline."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.entry import open_entry, settle
from accuracy_core.goldens.location import S3_URI_VARIABLE, cache_directory
from accuracy_core.goldens.metadata import DamagedEntryError
from accuracy_core.goldens.tier import RemoteTier

Keys = Iterable[str] | None


@dataclass
class TransferReport:
    """Keys by what happened to them. `failed` maps to the reason; `warnings` are those of the shared store."""

    moved: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def push_entries(
    keys: Keys = None, cache_dir: str | os.PathLike[str] | None = None, s3_uri: str | None = None
) -> TransferReport:
    """Upload entries of the local cache (default: all) that the shared store does not hold. Damaged ones are not sent.

    An entry that is there already stays as it is. Raises ConfigurationError without a shared store.
    """
    disk, report = DiskTier(cache_directory(cache_dir)), TransferReport()
    remote = _remote(s3_uri, report)
    for key in disk.keys() if keys is None else keys:
        try:
            metadata = open_entry(disk.folder(key), key).metadata
        except (DamagedEntryError, OSError) as error:
            report.failed[key] = f"not usable here: {error}"
            continue
        if remote.holds(key):
            report.present.append(key)
        elif remote.publish(metadata, disk.folder(key)) is None:
            report.failed[key] = "the shared store did not take it"
        else:
            report.moved.append(key)
    return report


def pull_entries(
    keys: Keys = None, cache_dir: str | os.PathLike[str] | None = None, s3_uri: str | None = None
) -> TransferReport:
    """Download entries of the shared store (default: all) that are not in the local cache; each is verified first.

    Raises ConfigurationError without a shared store or with a cache that cannot be written, InfrastructureError when
    the store cannot be listed.
    """
    disk, report = DiskTier(cache_directory(cache_dir)), TransferReport()
    remote = _remote(s3_uri, report)
    wanted = remote.keys() if keys is None else list(keys)
    if wanted is None:
        raise InfrastructureError("the shared store cannot be listed", fix="; ".join(report.warnings))
    try:
        disk.prepare()
    except OSError as error:
        raise ConfigurationError(f"golden cache {disk.root} cannot be written: {error}") from error
    for key in wanted:
        if disk.folder(key).exists():
            report.present.append(key)
            continue
        problem = _download(disk, remote, key)
        if problem:
            report.failed[key] = problem
        else:
            report.moved.append(key)
    return report


def _download(disk: DiskTier, remote: RemoteTier, key: str) -> str:
    try:
        with disk.temporary() as folder:
            if not remote.fetch(key, folder):
                return "the shared store did not give it"
            settle(folder)
            open_entry(folder, key)
            disk.publish(key, Path(folder))
    except (DamagedEntryError, OSError) as error:
        return f"not usable: {error}"
    return ""


def _remote(s3_uri: str | None, report: TransferReport) -> RemoteTier:
    from accuracy_core.goldens.s3 import s3_tier

    remote = s3_tier(s3_uri, report.warnings.append)
    if remote is None:
        raise ConfigurationError(
            "no shared store is configured", fix=f"set ${S3_URI_VARIABLE} or pass s3://bucket/prefix"
        )
    return remote
