"""Objects below one prefix of a bucket, with conditions where the server knows them."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from accuracy_core.pipeline.mirror_list import inside
from accuracy_core.storage.s3_client import error_code, http_status, transfer_config
from accuracy_core.storage.s3_errors import storage_error
from accuracy_core.storage.s3_path import s3_client, s3_path

T = TypeVar("T")


class MissingObject(Exception):
    """There is no such object."""


class _ConditionFailed(Exception):
    """Somebody else wrote the object in between."""


class _NoConditions(Exception):
    """The server has no conditional writes."""


class Objects:
    """Every method raises ConfigurationError or InfrastructureError, see `storage_error`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        path = s3_path(uri)
        self.bucket, self.prefix = path.bucket, path.key.rstrip("/")

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Content and ETag; None when there is no such object."""

        def read(s3: Any) -> tuple[bytes, str]:
            answer = s3.get_object(**self._at(name))
            return answer["Body"].read(), answer["ETag"]

        try:
            return self._call(f"{self.uri}: reading {name}", read)
        except MissingObject:
            return None

    def put(self, name: str, content: bytes, condition: dict[str, str] | None = None) -> bool:
        """False when `condition` is not met. A server that knows no conditions gets a plain put."""
        try:
            self._call(
                f"{self.uri}: writing {name}",
                lambda s3: s3.put_object(**self._at(name), Body=content, **(condition or {})),
            )
        except _ConditionFailed:
            found = self.get(name)  # 412 also comes for one's own put whose answer was lost
            return found is not None and found[0] == content
        except _NoConditions:
            return self.put(name, content)
        return True

    def delete(self, name: str) -> None:
        self._call(f"{self.uri}: removing {name}", lambda s3: s3.delete_object(**self._at(name)))

    def download(self, name: str, target: Path) -> None:
        """Raises MissingObject when there is no such object."""
        arguments = (self.bucket, self._key(name), str(target))
        self._call(f"{self.uri}: reading {name}", lambda s3: s3.download_file(*arguments, Config=transfer_config()))

    def upload(self, name: str, source: Path) -> None:
        kind, _ = mimetypes.guess_type(name)
        extra = {"ContentType": kind} if kind else {}
        arguments = (str(source), self.bucket, self._key(name))
        self._call(
            f"{self.uri}: writing {name}",
            lambda s3: s3.upload_file(*arguments, ExtraArgs=extra, Config=transfer_config()),
        )

    def names(self) -> list[str]:
        """Names of all objects below the prefix, hidden ones left out."""

        def listing(s3: Any) -> list[str]:
            start = f"{self.prefix}/" if self.prefix else ""
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start)
            return [item["Key"][len(start) :] for page in pages for item in page.get("Contents", [])]

        names: list[str] = self._call(f"{self.uri}: listing the bucket", listing)
        return [name for name in names if inside(name) and not name.rsplit("/", 1)[-1].startswith(".")]

    def _call(self, doing: str, call: Callable[[Any], T]) -> T:
        try:
            return call(s3_client())
        except Exception as error:  # the client raises a dozen unrelated types
            status, code = http_status(error), error_code(error)
            if status == 404 and code in ("404", "NoSuchKey"):
                raise MissingObject from error
            if status in (409, 412):
                raise _ConditionFailed from error
            if status == 501:
                raise _NoConditions from error
            raise storage_error(error, doing) from error

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._key(name)}
