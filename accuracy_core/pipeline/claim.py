"""One run at a time in a run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import RunDir


@contextlib.contextmanager
def claimed(run_dir: RunDir) -> Iterator[None]:
    """Hold a local run directory; the kernel gives it back however the holder ends.

    Raises ConfigurationError when another run writes to it. Directories elsewhere cannot be held.
    """
    if not isinstance(run_dir.root, Path):
        yield
        return
    lock = FileLock(run_dir.root / ".assay.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ConfigurationError(
            f"another run is writing to {run_dir.root}", fix="wait for it, or choose another --output directory"
        ) from error
    try:
        yield
    finally:
        lock.release()
