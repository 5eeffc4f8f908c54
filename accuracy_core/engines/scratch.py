"""Folders for tensors on their way from the engine: in memory where there is room."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from accuracy_core.schemas import ReplayRequest

_MEMORY = Path("/dev/shm")
_FLOAT32_BYTES = 4
#: a memory-backed folder is used only when it holds this many times what is expected
_HEADROOM = 2


def tensor_bytes(requests: Sequence[ReplayRequest], vocab_size: int) -> int:
    """Bytes of the float32 rows (tokens, vocab) that `requests` record."""
    rows = sum(len(request.forced_token_ids) or request.max_new_tokens or 1 for request in requests)
    return rows * vocab_size * _FLOAT32_BYTES


def make_scratch(expected_bytes: int = 1 << 28, *, prefix: str = "assay-") -> Path:
    """A new private folder, in /dev/shm when `expected_bytes` fit twice, else in the temporary directory."""
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _HEADROOM * expected_bytes:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY))
    return Path(tempfile.mkdtemp(prefix=prefix))
