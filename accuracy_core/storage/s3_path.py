"""`s3://bucket/key` as a path (cloudpathlib), over a client with our time limits."""

from __future__ import annotations

import functools
import os
import re
import uuid
from typing import TYPE_CHECKING, Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.storage.s3_client import (
    DEFAULT_REGION,
    S3Settings,
    client_config,
    configured_endpoint,
    http_status,
    transfer_config,
)
from accuracy_core.storage.s3_errors import storage_error

if TYPE_CHECKING:
    from cloudpathlib import CloudPath, S3Path

SCHEME = "s3://"
#: what S3 itself accepts as a bucket's name
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def s3_path(uri: str) -> S3Path:
    """`uri` as a path; the server is not asked. Raises ConfigurationError for a URI that can name nothing."""
    text = uri.rstrip("/")
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            f"{uri!r} names no S3 location: {bucket!r} is no bucket name", fix="write s3://bucket/prefix"
        )
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise ConfigurationError(
            f"{uri!r}: empty and dotted parts have no meaning on S3", fix="write s3://bucket/prefix"
        )
    path: S3Path = _client(_environment()).CloudPath(text)
    return path


def s3_client() -> Any:
    """The boto3 client under `s3_path`."""
    return _client(_environment()).client


def prove_writable(folder: CloudPath) -> None:
    """Write an object below `folder` and remove it. Raises as `storage_error` says."""
    bucket, _, key = str(folder).removeprefix(SCHEME).partition("/")
    name = f"{key}/.probe-{uuid.uuid4().hex}".lstrip("/")
    doing = f"output directory {folder}: no object can be written there"
    try:
        s3_client().head_bucket(Bucket=bucket)  # some servers make a bucket of whatever name is written to
    except Exception as error:
        if http_status(error) == 404:
            raise storage_error(error, f"{doing}: there is no bucket {bucket}") from error
        if http_status(error) != 403:  # may not be allowed where writing is
            raise storage_error(error, doing) from error
    try:
        s3_client().put_object(Bucket=bucket, Key=name, Body=b"")
        s3_client().delete_object(Bucket=bucket, Key=name)
    except Exception as error:  # the client raises a dozen unrelated types
        raise storage_error(error, doing) from error


def _environment() -> tuple[tuple[str, str], ...]:
    """What decides which server is asked and as whom; part of the cache's key, never written anywhere."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return (("pid", str(os.getpid())), *sorted(settings.items()))  # clients must not cross a fork


@functools.lru_cache(maxsize=8)
def _client(environment: tuple[tuple[str, str], ...]) -> Any:
    import botocore.session
    from boto3.session import Session
    from cloudpathlib import S3Client
    from cloudpathlib.enums import FileCacheMode

    endpoint = configured_endpoint()
    core = botocore.session.get_session()
    core.set_default_client_config(client_config(endpoint, S3Settings()))
    region = Session().region_name or DEFAULT_REGION
    return S3Client(
        boto3_session=Session(botocore_session=core, region_name=region),
        endpoint_url=endpoint or None,
        addressing_style="path" if endpoint else None,
        boto3_transfer_config=transfer_config(),
        file_cache_mode=FileCacheMode.close_file,  # the library tells a stale copy by its time, which may lie
    )
