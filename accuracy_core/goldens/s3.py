"""The shared tier on S3 or anything that speaks its protocol.

`<prefix>/v1/<key>/golden-<sha256>.safetensors` is written first; `metadata.json` beside it, put only if there is none,
is the commit marker. Two writers can so never mix, also on servers that ignore the condition.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens.breaker import Breaker
from accuracy_core.goldens.lease import Leases
from accuracy_core.goldens.location import S3_URI_VARIABLE, lease_seconds
from accuracy_core.goldens.metadata import (
    DATA_NAME,
    MAX_METADATA_BYTES,
    METADATA_NAME,
    DamagedEntryError,
    GoldenMetadata,
)
from accuracy_core.goldens.tier import RemoteTier
from accuracy_core.storage.s3_client import (
    S3Settings,
    TransferTooSlowError,
    error_code,
    http_status,
    new_client,
    transfer_config,
)

logger = logging.getLogger(__name__)

_URI = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>[A-Za-z0-9!_.*'()/-]*))?")
_METADATA_CHUNK = 4096
_COMMITTED = re.compile(rf"[0-9a-f]{{64}}/{re.escape(METADATA_NAME)}")
#: errors of the local disk that come up in a download: the shared store is not to blame
_LOCAL_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)


def s3_tier(uri: str | None, warn: Callable[[str], None], settings: S3Settings | None = None) -> RemoteTier | None:
    """Tier at `s3://bucket/prefix`; None stands for `$ASSAY_GOLDENS_S3_URI`, an empty URI for no shared tier.

    Credentials and `$AWS_ENDPOINT_URL_S3` are boto3's. Nothing is contacted here. Raises ConfigurationError for a bad
    URI.
    """
    chosen = os.environ.get(S3_URI_VARIABLE, "") if uri is None else uri
    if not chosen:
        return None
    match = _URI.fullmatch(chosen)
    if not match or ".." in chosen:
        raise ConfigurationError(f"{chosen!r} is no S3 URI", fix="use s3://bucket/prefix")
    return S3Tier(match["bucket"], (match["prefix"] or "").strip("/"), warn, settings or S3Settings())


#: per process and store, so that one dead store is noticed once
_breakers: dict[tuple[str, str], Breaker] = {}
#: per process id: clients must not cross a fork
_clients: dict[tuple[int, str, S3Settings], Any] = {}


class S3Tier:
    """See RemoteTier."""

    def __init__(self, bucket: str, prefix: str, warn: Callable[[str], None], settings: S3Settings) -> None:
        self.bucket, self.prefix, self.settings = bucket, prefix, settings
        self._warn = warn
        self._condemned: set[str] = set()
        self._endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        self._breaker = _breakers.setdefault((self._endpoint, bucket), Breaker(settings.breaker_s))
        self._lease_s = lease_seconds()

    def fetch(self, key: str, folder: Path) -> bool:
        if not self._breaker.closed:
            return False
        try:
            metadata = self._read_metadata(key)
            if metadata is None:
                return False
            self._client().download_file(
                self.bucket,
                self._object(key, metadata.data_object),
                str(folder / DATA_NAME),
                Config=transfer_config(),
                Callback=self._deadline(metadata.data_bytes),
            )
            (folder / METADATA_NAME).write_bytes(metadata.to_bytes())
        except DamagedEntryError as error:
            self._warn(f"golden {key[:12]}… on {self._place} is damaged ({error}): computed again and replaced")
            self.condemn(key)
            return False
        except Exception as error:  # boto3 raises generated types; no trouble of the store may fail a run
            if http_status(error) == 404:
                self._warn(f"golden {key[:12]}… on {self._place} has metadata but no data: computed again and replaced")
                self.condemn(key)
            else:
                self._failed("reading", error)
            return False
        return True

    def publish(self, metadata: GoldenMetadata, folder: Path) -> GoldenMetadata | None:
        if not (self._breaker.closed and self._breaker.writable):
            return None
        key = metadata.key
        try:
            self._client().upload_file(
                str(folder / DATA_NAME),
                self.bucket,
                self._object(key, metadata.data_object),
                Config=transfer_config(),
                Callback=self._deadline(metadata.data_bytes),
            )
            if key not in self._condemned and not self._commit(metadata, only_if_absent=True):
                # 412 also comes for one's own put whose reply was lost: the winner read back is then ours
                winner = self._winner(key)
                if winner is not None:
                    return winner
                self.condemn(key)
            if key in self._condemned:
                self._commit(metadata, only_if_absent=False)
                self._condemned.discard(key)
        except Exception as error:  # as above
            self._failed("writing", error)
            return None
        return metadata

    def condemn(self, key: str) -> None:
        self._condemned.add(key)

    def holds(self, key: str) -> bool:
        if not self._breaker.closed:
            return False
        try:
            return self._winner(key) is not None
        except Exception as error:  # as above
            self._failed("reading", error)
            return False

    def keys(self) -> list[str] | None:
        if not self._breaker.closed:
            return None
        start = self._object("", "")
        try:
            pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start)
            names = [item["Key"].removeprefix(start) for page in pages for item in page.get("Contents", [])]
        except Exception as error:  # as above
            self._failed("listing", error)
            return None
        return sorted(name.split("/")[0] for name in names if _COMMITTED.fullmatch(name))

    def leases(self) -> Leases | None:
        if self._lease_s is None or not (self._breaker.closed and self._breaker.writable and self._breaker.leasable):
            return None
        return Leases(self, self._lease_s, self._no_lease)

    def _no_lease(self, error: Exception) -> None:
        if http_status(error) in (403, 501):  # no right to write here, or no conditional writes: goldens may still go
            self._breaker.leasable = False
            logger.info("no leases on %s: %s", self._place, error_code(error))
        else:
            self._failed("leasing", error)

    def read_lease(self, key: str) -> tuple[str, bytes] | None:
        """See LeaseSlots."""
        try:
            answer = self._client().get_object(Bucket=self.bucket, Key=self._lease(key))
        except Exception as error:
            if http_status(error) == 404:
                return None
            raise
        return answer["ETag"], answer["Body"].read(_METADATA_CHUNK)

    def write_lease(self, key: str, content: bytes, etag: str | None) -> str | None:
        """See LeaseSlots."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            answer = self._client().put_object(Bucket=self.bucket, Key=self._lease(key), Body=content, **condition)
        except Exception as error:
            if http_status(error) in (404, 409, 412):
                return None
            raise
        return str(answer["ETag"])

    def _commit(self, metadata: GoldenMetadata, *, only_if_absent: bool) -> bool:
        """Put the metadata; False if the condition refused it."""
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        try:
            self._client().put_object(
                Bucket=self.bucket,
                Key=self._object(metadata.key, METADATA_NAME),
                Body=metadata.to_bytes(),
                ContentType="application/json",
                **condition,
            )
        except ClientError as error:
            if only_if_absent and http_status(error) in (409, 412):
                return False
            if only_if_absent and http_status(error) == 501:  # a server without conditional writes
                return self._commit(metadata, only_if_absent=False)
            raise
        return True

    def _winner(self, key: str) -> GoldenMetadata | None:
        """The committed metadata if its data is there, else None."""
        try:
            metadata = self._read_metadata(key)
            if metadata is None:
                return None
            head = self._client().head_object(Bucket=self.bucket, Key=self._object(key, metadata.data_object))
            return metadata if head["ContentLength"] == metadata.data_bytes else None
        except DamagedEntryError:
            return None
        except Exception as error:
            if http_status(error) == 404:
                return None
            raise

    def _read_metadata(self, key: str) -> GoldenMetadata | None:
        """Raises DamagedEntryError if it is read damaged twice: bits also flip on the way."""
        try:
            return self._read_metadata_once(key)
        except DamagedEntryError:
            return self._read_metadata_once(key)

    def _read_metadata_once(self, key: str) -> GoldenMetadata | None:
        try:
            answer = self._client().get_object(Bucket=self.bucket, Key=self._object(key, METADATA_NAME))
        except Exception as error:
            if error_code(error) == "NoSuchKey" or (http_status(error) == 404 and error_code(error) == "404"):
                return None
            raise
        size = answer["ContentLength"]
        if size > MAX_METADATA_BYTES:
            raise DamagedEntryError("metadata is too large")
        check, parts = self._deadline(size), []
        for part in answer["Body"].iter_chunks(_METADATA_CHUNK):
            check(len(part))
            parts.append(part)
        return GoldenMetadata.parse(b"".join(parts), key)

    def _deadline(self, size: int) -> Callable[[int], None]:
        end = time.monotonic() + self.settings.grace_s + size / self.settings.slowest

        def check(_: int) -> None:
            if time.monotonic() > end:
                raise TransferTooSlowError("transfer too slow")

        return check

    def _failed(self, doing: str, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _LOCAL_TROUBLE:
            self._warn(f"a golden from {self._place} cannot be written here: {error.strerror}")
            return
        code = error_code(error) or type(error).__name__
        if doing == "writing" and code in ("AccessDenied", "403"):
            self._breaker.writable = False  # a consumer that may only read is a normal thing to be
            self._warn(f"goldens are not written to {self._place}: {code}")
            return
        self._breaker.trip()
        self._warn(
            f"{doing} goldens on {self._place} failed: {code}; "
            f"the shared store is left alone for {self.settings.breaker_s:.0f} s"
        )

    @property
    def _place(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def _object(self, key: str, name: str) -> str:
        """Name of an object; without `key` and `name` the prefix of them all."""
        return "/".join(part for part in (self.prefix, "v1", key, name) if part) + ("" if key else "/")

    def _lease(self, key: str) -> str:
        return "/".join(part for part in (self.prefix, "leases", key) if part)

    def _client(self) -> Any:
        identity = (os.getpid(), self._endpoint, self.settings)
        with _client_lock:
            if identity not in _clients:
                _clients[identity] = new_client(self._endpoint, self.settings)
            return _clients[identity]


_client_lock = threading.Lock()
