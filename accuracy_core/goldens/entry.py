"""One entry: a folder with `golden.safetensors` and `metadata.json`. Nothing is believed that was not hashed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accuracy_core.goldens.metadata import (
    DATA_NAME,
    MAX_METADATA_BYTES,
    METADATA_NAME,
    DamagedEntryError,
    GoldenMetadata,
)
from accuracy_core.goldens.tensor_file import TensorFile, TensorLists, write_tensors

#: a file changed within this time (seconds) is hashed again at the next use: a second change in the same tick of the
#: file system's clock would leave its time stamps alone
_SETTLING_TIME_S = 2.0

_verified: dict[tuple[int, ...], str] = {}


@dataclass(frozen=True)
class Entry:
    """A verified entry and the open file that was verified."""

    metadata: GoldenMetadata
    file: TensorFile


def write_entry(
    folder: Path,
    key: str,
    key_config: Mapping[str, Any],
    tensors: TensorLists,
    *,
    compute_s: float,
    provenance: Mapping[str, Any],
) -> GoldenMetadata:
    """Write both files into `folder`, read-only and synced to the disk. Raises OSError or SafetensorError."""
    data = folder / DATA_NAME
    records = write_tensors(data, tensors)
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    metadata = GoldenMetadata(
        key=key,
        key_config=dict(key_config),
        data_bytes=data.stat().st_size,
        data_sha256=digest,
        tensors=records,
        created=datetime.now(UTC),
        compute_s=compute_s,
        provenance=dict(provenance),
    ).sealed()
    (folder / METADATA_NAME).write_bytes(metadata.to_bytes())
    settle(folder)
    return metadata


def settle(folder: Path) -> None:
    """Make the entry's files read-only and sync them and their folder, so that a rename publishes complete bytes."""
    for path in (folder / DATA_NAME, folder / METADATA_NAME):
        path.chmod(0o444)
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_entry(folder: Path, key: str) -> Entry:
    """Verify the entry in `folder`: key, metadata's digest, length and sha256 of the data (once per process and file).

    Raises FileNotFoundError when there is no entry at all, DamagedEntryError when a part is missing or wrong, and
    OSError when it cannot be read.
    """
    if not folder.exists():
        raise FileNotFoundError(folder)
    metadata = GoldenMetadata.parse(_read_metadata(folder), key)
    try:
        descriptor = os.open(folder / DATA_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not folder.exists():  # evicted between the two reads: a plain miss
            raise
        raise DamagedEntryError("data file is missing") from error
    try:
        _verify(descriptor, metadata)
        file = TensorFile(descriptor, metadata.tensors)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
    return Entry(metadata, file)


def _read_metadata(folder: Path) -> bytes:
    try:
        with (folder / METADATA_NAME).open("rb") as file:
            raw = file.read(MAX_METADATA_BYTES + 1)
    except FileNotFoundError as error:
        if not folder.exists():
            raise
        raise DamagedEntryError("metadata is missing") from error
    if len(raw) > MAX_METADATA_BYTES:
        raise DamagedEntryError("metadata is too large")
    return raw


def _verify(descriptor: int, metadata: GoldenMetadata) -> None:
    before = _identity(descriptor)
    if os.fstat(descriptor).st_size != metadata.data_bytes:
        raise DamagedEntryError("data has the wrong length")
    digest = _verified.get(before)
    if digest is None:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(descriptor)
        if _identity(descriptor) == before and time.time() - status.st_ctime > _SETTLING_TIME_S:
            _verified[before] = digest
    if digest != metadata.data_sha256:
        raise DamagedEntryError("data does not have the digest in its metadata")


def forget_verified() -> None:
    """Hash every file again at its next use."""
    _verified.clear()


def _identity(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
