"""Where goldens are kept."""

from __future__ import annotations

import os
from pathlib import Path

from accuracy_core.errors import ConfigurationError

CACHE_DIR_VARIABLE = "VLLM_NEURON_GOLDEN_CACHE_DIR"
S3_URI_VARIABLE = "ASSAY_GOLDENS_S3_URI"
MAX_BYTES_VARIABLE = "ASSAY_GOLDENS_MAX_BYTES"
LEASE_VARIABLE = "ASSAY_GOLDENS_LEASE_S"
LONGEST_LEASE_S = 3600.0


def cache_directory(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """`cache_dir`, else `$VLLM_NEURON_GOLDEN_CACHE_DIR`, else `~/.cache/vllm/neuron/goldens`; nothing is created.

    Raises ConfigurationError if a file stands where the directory, or one above it, should be.
    """
    chosen = os.fspath(cache_dir) if cache_dir else os.environ.get(CACHE_DIR_VARIABLE) or "~/.cache/vllm/neuron/goldens"
    root = Path(chosen).expanduser().absolute()
    existing = next(place for place in (root, *root.parents) if os.path.lexists(place))
    if not os.path.isdir(existing) and os.path.exists(existing):
        raise ConfigurationError(
            f"golden cache directory {root}: {existing} is a file",
            fix=f"name a directory, or set ${CACHE_DIR_VARIABLE} to one",
        )
    return root


def size_limit() -> int | None:
    """Bytes the local cache may hold, from `$ASSAY_GOLDENS_MAX_BYTES`; None: no limit. Raises ConfigurationError."""
    text = os.environ.get(MAX_BYTES_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"${MAX_BYTES_VARIABLE} is {text!r}", fix="set it to a number of bytes, or unset it")
    return int(text)


def lease_seconds() -> float | None:
    """How long a lease in the shared store outlives its holder, from `$ASSAY_GOLDENS_LEASE_S`; None: no leases.

    Raises ConfigurationError.
    """
    text = os.environ.get(LEASE_VARIABLE, "").strip()
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_LEASE_S:  # NaN is not, either
        raise ConfigurationError(
            f"${LEASE_VARIABLE} is {text!r}", fix=f"set it to seconds, at most {LONGEST_LEASE_S:.0f}; 60 suits; 0: off"
        )
    return seconds or None
