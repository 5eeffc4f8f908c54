"""Folders for tensors on their way from the engine: in memory where there is room, removed however the owner ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from accuracy_core.schemas import ReplayRequest

_MEMORY = Path("/dev/shm")
_PREFIX = "assay-scratch-"
#: name until it is locked, so that nobody takes it for abandoned in between
_UNLOCKED_PREFIX = "assay-new-"
_FLOAT32_BYTES = 4
#: a memory-backed folder is used only when it holds this many times what is expected
_HEADROOM = 2
#: room asked for when nothing is known about what will come
DEFAULT_BYTES = 1 << 28


class Scratch:
    """A private folder of this process. `remove` deletes it; if the process dies first, the next `Scratch` does.

    Whether the owner lives is told by a lock on the folder, which the kernel drops with the owner. Process numbers
    would not do: /dev/shm may be shared between containers that number processes apart.
    """

    def __init__(self, expected_bytes: int = DEFAULT_BYTES) -> None:
        """In /dev/shm when `expected_bytes` fit twice, else in the temporary directory."""
        parent = _MEMORY if _has_room(expected_bytes) else Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=parent))
        self._lock: int | None = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = unlocked.rename(parent / unlocked.name.replace(_UNLOCKED_PREFIX, _PREFIX))

    def remove(self) -> None:
        """Delete the folder. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def tensor_bytes(requests: Sequence[ReplayRequest], vocab_size: int) -> int:
    """Bytes of the float32 rows (tokens, vocab) that `requests` record."""
    rows = sum(len(request.forced_token_ids) or request.max_new_tokens or 1 for request in requests)
    return rows * vocab_size * _FLOAT32_BYTES


def _has_room(expected_bytes: int) -> bool:
    return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _HEADROOM * expected_bytes


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, gone meanwhile, or its owner lives
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
