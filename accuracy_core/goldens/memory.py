"""How much memory a reference takes, and whether it fits."""

from __future__ import annotations

import resource
import sys

import torch

#: share of the free memory that weights may take: activations, logits and the rest of the process need some, too
WEIGHT_SHARE = 0.8


def peak_memory_gb() -> float:
    """Largest resident size of this process so far, in GB of 10**9 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def free_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def weight_bytes(checkpoint: str, dtype: torch.dtype) -> int | None:
    """Bytes of the checkpoint's weights once loaded in `dtype`, from the safetensors headers; None without any."""
    from pathlib import Path

    from safetensors import SafetensorError, safe_open

    elements = 0
    try:
        for file in Path(checkpoint).glob("*.safetensors"):
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118 - not a dict
                    count = 1
                    for size in content.get_slice(name).get_shape():
                        count *= size
                    elements += count
    except (SafetensorError, OSError):
        return None
    return elements * dtype.itemsize or None
