"""The boto3 client of everything that is kept on S3, its time limits, and how its errors are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class S3Settings:
    """Time limits. A transfer may take `grace_s` plus its size at `slowest` bytes per second."""

    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    attempts: int = 3
    breaker_s: float = 60.0
    grace_s: float = 30.0
    slowest: float = 1.0 * MIB


class TransferTooSlowError(Exception):
    """A transfer did not end in time: read time-outs are per packet and never see a slow drip."""


def client_config(endpoint: str, settings: S3Settings) -> Any:
    """botocore's Config: time limits, and what servers other than AWS need."""
    from botocore.config import Config

    # servers other than AWS mishandle the trailing checksums that boto3 sends by default; sha256 is ours anyway
    own_server: dict[str, Any] = {
        "s3": {"addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    return Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": settings.attempts},
        max_pool_connections=16,
        tcp_keepalive=True,
        **(own_server if endpoint else {}),
    )


def new_client(endpoint: str, settings: S3Settings) -> Any:
    import boto3

    session = boto3.session.Session()
    return session.client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=session.region_name or DEFAULT_REGION,
        config=client_config(endpoint, settings),
    )


def configured_endpoint() -> str:
    """`$AWS_ENDPOINT_URL_S3`, else `$AWS_ENDPOINT_URL`, else '' for AWS itself."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def transfer_config() -> Any:
    from boto3.s3.transfer import TransferConfig

    # "classic": the CRT client, chosen by itself on accelerator hosts, ignores endpoint_url
    return TransferConfig(
        multipart_threshold=64 * MIB,
        multipart_chunksize=32 * MIB,
        max_concurrency=8,
        io_chunksize=64 << 10,  # small: the deadline is checked once a chunk; 1 MiB was no faster
        preferred_transfer_client="classic",
    )


def _response(error: Exception) -> dict[str, Any]:
    """The server's answer in a ClientError, or in the one that boto3 wrapped in an upload error."""
    for candidate in (error, error.__cause__, error.__context__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            return response
    return {}


def http_status(error: Exception) -> int | None:
    return _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")


def error_code(error: Exception) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))
