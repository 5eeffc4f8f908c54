"""Content-addressed goldens: from the local disk, else from the shared store, else computed once and published."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accuracy_core.errors import InputMismatchError
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.entry import Entry, open_entry, settle, write_entry
from accuracy_core.goldens.key import golden_key
from accuracy_core.goldens.lease import Turn
from accuracy_core.goldens.location import cache_directory, size_limit
from accuracy_core.goldens.mapping import Goldens, Source
from accuracy_core.goldens.metadata import DamagedEntryError, GoldenMetadata, TensorRecord
from accuracy_core.goldens.tensor_file import TensorLists, check_tensors
from accuracy_core.goldens.tier import RemoteTier

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 3600.0

#: key -> its index in the caller's list, and its configuration
_Wanted = Mapping[str, tuple[int, Mapping[str, Any]]]
_Compute = Callable[[list[int]], Iterable[TensorLists]]


def get_or_compute_goldens(
    key_config: Mapping[str, Any],
    compute: Callable[[], TensorLists],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    s3_uri: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Goldens:
    """The golden of `key_config`, computed by `compute()` only if neither tier holds it.

    `key_config`: plain JSON values, everything that changes the result. `compute()` returns names mapped to lists of
    tensors; all values must be finite. `cache_dir`, `s3_uri`: see `cache_directory` and `s3_tier`. `provenance` is
    written down but does not identify the golden.

    Trouble with the cache never fails the call: it becomes a warning (logged once, and in `Goldens.warnings`), at worst
    the golden is computed and returned uncached. What `compute` raises is passed on and nothing is stored. Raises
    ConfigurationError for a key_config without canonical form, a cache directory that is a file or a bad S3 URI,
    InputMismatchError and ReferenceError_ for what `compute` returned; all but the last two before computing.
    """
    (golden,) = get_or_compute_many(
        [key_config],
        lambda _: [compute()],
        cache_dir=cache_dir,
        s3_uri=s3_uri,
        provenance=provenance,
        lock_timeout_s=lock_timeout_s,
    )
    return golden


def get_or_compute_many(
    key_configs: Sequence[Mapping[str, Any]],
    compute: Callable[[list[int]], Iterable[TensorLists]],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    s3_uri: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> list[Goldens]:
    """Goldens of several configurations, in order; only the missing ones are computed, in one call (with leases, a
    second call for what another host began and did not finish).

    `compute(indices)` yields the tensors of `key_configs[i]` for each index in turn; each golden is published as soon
    as it is yielded, so a killed run loses only what it had not finished. Otherwise as `get_or_compute_goldens`.
    """
    keys = [golden_key(config) for config in key_configs]
    index_of: dict[str, int] = {}
    for index, key in enumerate(keys):
        index_of.setdefault(key, index)
    store = _Store(cache_directory(cache_dir), s3_uri, dict(provenance or {}))
    found = {key: golden for key in index_of if (golden := store.from_disk(key))}
    missing = [key for key in index_of if key not in found]
    if missing:
        store.prepare()
        with store.disk.locked(missing, timeout_s=lock_timeout_s, warn=store.warn):
            found |= {key: golden for key in missing if (golden := store.find(key))}
            missing = [key for key in missing if key not in found]
            if missing:
                wanted = {key: (index_of[key], key_configs[index_of[key]]) for key in missing}
                found |= store.obtain(wanted, compute, lock_timeout_s)
    return [found[key] for key in keys]


class _Store:
    """The tiers of one call, and the warnings it gathered."""

    def __init__(self, root: Path, s3_uri: str | None, provenance: dict[str, Any]) -> None:
        self.warnings: list[str] = []
        self.disk = DiskTier(root)
        self.remote = _remote_tier(s3_uri, self.warn)
        self.provenance = provenance
        self.max_bytes = size_limit()

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            logger.warning("%s", text)

    def prepare(self) -> None:
        try:
            self.disk.prepare()
        except OSError as error:
            self.warn(f"golden cache {self.disk.root} cannot be used: {_cause(error)}; goldens are not kept")

    def from_disk(self, key: str) -> Goldens | None:
        entry = self.disk.read(key, self.warn)
        return self._golden(entry, "disk") if entry else None

    def find(self, key: str) -> Goldens | None:
        """From the disk, where another process may have put it meanwhile, else from the shared store."""
        return self.from_disk(key) or self._from_remote(key)

    def obtain(self, wanted: _Wanted, compute: _Compute, timeout_s: float) -> dict[str, Goldens]:
        """Compute what no other host is computing, then wait for what others are."""
        leases = self.remote.leases() if self.remote else None
        if leases is None:
            return self._compute_all(wanted, compute)
        found: dict[str, Goldens] = {}

        def look(key: str) -> bool:
            golden = self._from_remote(key)
            if golden is not None:
                found[key] = golden
            return golden is not None

        with leases:
            turns = {key: leases.claim(key) for key in wanted}
            theirs = [key for key, turn in turns.items() if turn is Turn.THEIRS]
            ours = [
                key
                for key, turn in turns.items()
                if turn is Turn.OURS or (turn is Turn.OURS_IF_MISSING and not look(key))
            ]
            for key in found:
                leases.release(key)
            found |= self._compute_all({key: wanted[key] for key in ours}, compute, leases.release)
            left = leases.wait(theirs, timeout_s, look)
            found |= self._compute_all({key: wanted[key] for key in left}, compute, leases.release)
        return found

    def _compute_all(
        self, wanted: _Wanted, compute: _Compute, done: Callable[[str], object] = lambda _: None
    ) -> dict[str, Goldens]:
        results: dict[str, Goldens] = {}
        if not wanted:
            return results
        iterator, started = iter(compute([index for index, _ in wanted.values()])), time.monotonic()
        for key, (_, config) in wanted.items():
            try:
                tensors = next(iterator)
            except StopIteration:
                raise InputMismatchError(f"compute gave {len(results)} goldens, {len(wanted)} were asked for") from None
            results[key] = self._publish(key, config, check_tensors(tensors), time.monotonic() - started)
            done(key)
        for _ in iterator:
            raise InputMismatchError(f"compute gave more goldens than the {len(wanted)} that were asked for")
        if self.max_bytes is not None:
            with suppress(OSError):
                self.disk.evict(self.max_bytes, keep=wanted)
        return results

    def _publish(self, key: str, config: Mapping[str, Any], tensors: TensorLists, compute_s: float) -> Goldens:
        entry = None
        try:
            with self._folder() as (folder, on_disk):
                metadata = write_entry(folder, key, config, tensors, compute_s=compute_s, provenance=self.provenance)
                adopted = self._share(metadata, folder)
                if adopted is not None:
                    return adopted
                if on_disk:
                    self.disk.publish(key, folder)
                    entry = self.disk.read(key, self.warn)
        except Exception as error:  # a full disk arrives as SafetensorError, a text without UTF-8 as ValueError
            self.warn(f"golden {key[:12]}… cannot be kept in {self.disk.root}: {_cause(error)}")
        return self._golden(entry, "computed") if entry else self._in_memory(key, config, tensors, compute_s)

    def _share(self, metadata: GoldenMetadata, folder: Path) -> Goldens | None:
        """Publish to the shared store. Another writer's golden if that was there first: every host serves the same."""
        winner = self.remote.publish(metadata, folder) if self.remote else None
        if self.remote is None or winner is None or winner.data_sha256 == metadata.data_sha256:
            return None
        adopted = self._from_remote(metadata.key)
        if adopted is None:
            self.remote.publish(metadata, folder)  # the winner's data turned out damaged: replace it
        return adopted

    def _from_remote(self, key: str) -> Goldens | None:
        """What the shared store has. Damaged in two downloads, it is condemned: bits also flip on the way."""
        if self.remote is None:
            return None
        try:
            try:
                return self._download(self.remote, key)
            except DamagedEntryError as error:
                logger.info("golden %s… arrived damaged (%s): downloading it again", key[:12], error)
                return self._download(self.remote, key)
        except DamagedEntryError as error:
            self.warn(f"golden {key[:12]}… in the shared store is damaged ({error}): computed again and replaced")
            self.remote.condemn(key)
        except OSError as error:
            self.warn(f"golden {key[:12]}… from the shared store cannot be kept: {_cause(error)}")
        return None

    def _download(self, remote: RemoteTier, key: str) -> Goldens | None:
        with self._folder() as (folder, on_disk):
            if not remote.fetch(key, folder):
                return None
            settle(folder)
            entry = open_entry(folder, key)
            if on_disk:
                self.disk.publish(key, folder)
        return self._golden(entry, "s3")

    @contextmanager
    def _folder(self) -> Iterator[tuple[Path, bool]]:
        """A folder to build an entry in, and whether it is in the cache; elsewhere if the cache cannot be written."""
        with ExitStack() as stack:
            try:
                folder, on_disk = stack.enter_context(self.disk.temporary()), True
            except OSError as error:
                self.warn(f"golden cache {self.disk.root} cannot be used: {_cause(error)}; goldens are not kept")
                folder, on_disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="golden-"))), False
            yield folder, on_disk

    def _golden(self, entry: Entry, source: Source) -> Goldens:
        return Goldens(
            key=entry.metadata.key,
            source=source,
            metadata=entry.metadata,
            load=entry.file.load,
            warnings=self.warnings,
        )

    def _in_memory(self, key: str, config: Mapping[str, Any], tensors: TensorLists, compute_s: float) -> Goldens:
        lists = {name: list(items) for name, items in tensors.items()}
        records = {
            name: [
                TensorRecord(shape=list(item.shape), dtype=(dtype := str(item.dtype)[6:]), stored_dtype=dtype)
                for item in items
            ]
            for name, items in lists.items()
        }
        metadata = GoldenMetadata.model_construct(
            schema_version=GoldenMetadata.SCHEMA_VERSION,
            key=key,
            key_config=dict(config),
            data_bytes=0,
            data_sha256="",
            tensors=records,
            created=datetime.now(UTC),
            compute_s=compute_s,
            provenance=self.provenance,
            self_sha256="",
        )
        return Goldens(key=key, source="computed", metadata=metadata, load=lists.__getitem__, warnings=self.warnings)


def _remote_tier(s3_uri: str | None, warn: Callable[[str], None]) -> RemoteTier | None:
    from accuracy_core.goldens.s3 import s3_tier

    return s3_tier(s3_uri, warn)


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
