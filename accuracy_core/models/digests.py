"""SHA-256 of files, memoised: a checkpoint of 140 GB is read once, not once per run."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from pathlib import Path

#: a file touched more recently than this (seconds) is not memoised: a second write within the same clock tick of the
#: file system would leave every time stamp as it was
_SETTLING_TIME_S = 2.0

_memo: dict[tuple[str | int, ...], str] = {}


def file_digest(path: Path, memo_dir: Path | None = None) -> str:
    """sha256 (hex) of the whole file.

    Remembered in the process, and in `memo_dir` across processes, under real path, device, inode, size, mtime and
    ctime: ctime also changes when a file is rewritten in place and its mtime set back. Raises OSError when unreadable.
    """
    path = path.resolve()
    with path.open("rb") as file:
        before = _identity(path, os.fstat(file.fileno()))
        known = _memo.get(before) or (_recall(memo_dir, before) if memo_dir else None)
        if known is not None:
            _memo[before] = known
            return known
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
    if _identity(path, status) == before and time.time() - status.st_ctime > _SETTLING_TIME_S:
        _memo[before] = digest
        if memo_dir:
            _remember(memo_dir, before, digest)
    return digest


def _identity(path: Path, status: os.stat_result) -> tuple[str | int, ...]:
    return (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _memo_file(memo_dir: Path, identity: tuple[str | int, ...]) -> Path:
    return memo_dir / f"{hashlib.sha256(str(identity[0]).encode('utf-8', 'surrogateescape')).hexdigest()}.json"


def _recall(memo_dir: Path, identity: tuple[str | int, ...]) -> str | None:
    try:
        record = json.loads(_memo_file(memo_dir, identity).read_text(encoding="utf-8"))
        digest = record["sha256"]
        matches = tuple(record["identity"]) == identity
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return digest if matches and isinstance(digest, str) and len(digest) == 64 else None


def _remember(memo_dir: Path, identity: tuple[str | int, ...], digest: str) -> None:
    """Best effort: without the memo the file is read again, nothing worse."""
    target = _memo_file(memo_dir, identity)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        memo_dir.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"identity": identity, "sha256": digest}), encoding="utf-8")
        os.replace(temporary, target)
    except (OSError, UnicodeEncodeError):
        temporary.unlink(missing_ok=True)
