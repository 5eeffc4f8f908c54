"""Versions of what can change a number, for provenance."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("assay-llm", "torch", "transformers", "tokenizers", "lm-eval", "safetensors", "numpy", "prefect")


def versions() -> dict[str, str]:
    """Package -> version of the running interpreter; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
