"""Where Assay keeps what outlives a run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$ASSAY_CACHE_DIR`, else `$XDG_CACHE_HOME/assay`, else `~/.cache/assay`."""
    own = os.environ.get("ASSAY_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"
