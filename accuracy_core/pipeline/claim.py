"""One run at a time in a run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from accuracy_core.errors import AssayError, ConfigurationError
from accuracy_core.pipeline.mirror import mirror_in
from accuracy_core.schemas import RunDir


@contextlib.contextmanager
def claimed(run_dir: RunDir) -> Iterator[None]:
    """Hold a run directory; the kernel gives a local one back however the holder ends.

    Raises ConfigurationError when another run writes to a local one. One on S3 is taken over from whoever had it, for
    nobody can tell from afar whether that one lives: what it publishes from then on is refused.
    """
    mirror = mirror_in(run_dir.root)
    if mirror is not None:
        mirror.claim()
        try:
            yield
        finally:
            with contextlib.suppress(AssayError):  # the next one takes it over anyway
                mirror.release()
        return
    if not isinstance(run_dir.root, Path):
        raise ConfigurationError(f"{run_dir.root} cannot be held", fix="work in Run.run_dir")
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
