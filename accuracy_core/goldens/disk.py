"""The local tier: entries appear by one rename, damaged ones are moved aside, one process at a time computes a key."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from accuracy_core.goldens.entry import Entry, open_entry, sync
from accuracy_core.goldens.key import check_key
from accuracy_core.goldens.metadata import METADATA_NAME, DamagedEntryError

Warn = Callable[[str], None]


class DiskTier:
    """Layout below `root`:

    `objects/ab/<key>/` entries · `tmp/<uuid>/` being written · `locks/` empty files that carry locks · `quarantine/`
    damaged entries, kept for inspection until `gc`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        return self.root / "objects" / check_key(key)[:2] / key

    def keys(self) -> list[str]:
        """Keys of all entries, damaged or not."""
        return sorted(path.name for path in (self.root / "objects").glob("??/*") if len(path.name) == 64)

    def prepare(self) -> None:
        """Create the folders and remove what dead writers left. Raises OSError when the place cannot be used."""
        for name in ("objects", "tmp", "locks", "quarantine"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for left in (self.root / "tmp").iterdir():
            self._remove_if_abandoned(left)

    def read(self, key: str, warn: Warn) -> Entry | None:
        """The verified entry, or None. A damaged one is quarantined and reported through `warn`, never returned."""
        folder = self.folder(key)
        try:
            entry = open_entry(folder, key)
        except FileNotFoundError:
            return None
        except DamagedEntryError as error:
            warn(f"cached golden {key[:12]}… is damaged ({error}): quarantined, taken from elsewhere or computed again")
            self.quarantine(key)
            return None
        except OSError as error:
            warn(f"cached golden {key[:12]}… cannot be read: {error.strerror or error}")
            return None
        with suppress(OSError):  # stamp for least-recently-used eviction; access times are often switched off
            os.utime(folder / METADATA_NAME)
        return entry

    def publish(self, key: str, complete: Path) -> None:
        """Rename the complete, synced folder `complete` into place; an entry that got there first stays.

        Raises OSError.
        """
        target = self.folder(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(complete, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            sync(target.parent)

    def quarantine(self, key: str) -> Path | None:
        """Move the entry aside; its new place, or None if it could not be moved."""
        aside = self.root / "quarantine" / f"{key}.{uuid.uuid4().hex[:8]}"
        try:
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.folder(key), aside)
        except OSError:
            return None
        return aside

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A new folder on the same file system, held by a lock: whoever gets the lock knows that its writer is dead."""
        name = uuid.uuid4().hex
        folder = self.root / "tmp" / name
        with self._lock(f"tmp-{name}"):
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                remove_tree(folder)
                self._lock_file(f"tmp-{name}").unlink(missing_ok=True)

    @contextmanager
    def locked(self, keys: Iterable[str], *, timeout_s: float, warn: Warn) -> Iterator[None]:
        """Hold the locks of `keys`, taken in sorted order so that overlapping sets cannot block each other for ever.

        Locks belong to open descriptors: the kernel drops them when a process is killed. Where a lock is not to be had,
        work may be done twice, which is harmless: publishing is atomic.
        """
        deadline = time.monotonic() + timeout_s
        with ExitStack() as stack:
            for key in sorted(set(keys)):
                try:
                    self.root.joinpath("locks").mkdir(parents=True, exist_ok=True)
                    stack.enter_context(self._lock(key).acquire(timeout=max(0.0, deadline - time.monotonic())))
                except Timeout:
                    warn(
                        f"golden {key[:12]}… is locked by another process for over {timeout_s:.0f} s: computing it too"
                    )
                except (OSError, NotImplementedError) as error:
                    warn(f"golden cache {self.root} takes no locks ({error}): another process may compute the same")
                    break
            yield

    def evict(self, max_bytes: int, *, keep: Iterable[str] = ()) -> list[str]:
        """Remove least recently used entries until at most `max_bytes` are left; keys of those removed.

        Entries that are being computed or that are in `keep` stay. A reader that has one open keeps its data.
        """
        entries = []
        for key in self.keys():
            with suppress(OSError):
                size = sum(item.stat().st_size for item in self.folder(key).iterdir())
                entries.append(((self.folder(key) / METADATA_NAME).stat().st_mtime_ns, size, key))
        total, removed, kept = sum(size for _, size, _ in entries), [], set(keep)
        for _, size, key in sorted(entries):
            if total <= max_bytes:
                break
            if key not in kept and self.remove(key):
                total -= size
                removed.append(key)
        return removed

    def remove(self, key: str) -> bool:
        """Remove an entry unless it is being computed; True if it is gone."""
        try:
            with self._lock(key).acquire(timeout=0):
                aside = self.quarantine(key)
        except (Timeout, OSError):
            return False
        if aside is None:
            return False
        remove_tree(aside)
        return True

    def _lock_file(self, name: str) -> Path:
        return self.root / "locks" / f"{name}.lock"

    def _lock(self, name: str) -> FileLock:
        return FileLock(self._lock_file(name), poll_interval=0.05)

    def _remove_if_abandoned(self, folder: Path) -> None:
        with suppress(Timeout, OSError), self._lock(f"tmp-{folder.name}").acquire(timeout=0):
            remove_tree(folder)
            self._lock_file(f"tmp-{folder.name}").unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
