"""The shared tier on S3."""

from __future__ import annotations

import os
from collections.abc import Callable

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.goldens.location import S3_URI_VARIABLE
from accuracy_core.goldens.tier import RemoteTier


def s3_tier(uri: str | None, warn: Callable[[str], None]) -> RemoteTier | None:
    """Tier at `s3://bucket/prefix`; None stands for `$ASSAY_GOLDENS_S3_URI`, an empty URI for no shared tier.

    Raises ConfigurationError for a bad URI.
    """
    chosen = os.environ.get(S3_URI_VARIABLE, "") if uri is None else uri
    if not chosen:
        return None
    if not chosen.startswith("s3://"):
        raise ConfigurationError(f"{chosen!r} is no S3 URI", fix="use s3://bucket/prefix")
    raise NotMeasuredError("goldens on S3 are not available yet", fix=f"unset ${S3_URI_VARIABLE}")
