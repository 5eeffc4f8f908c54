"""Files of the KV comparison of one prompt."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_core.capture.kv.files import TargetFiles
from accuracy_core.capture.taps import kv_tensor_name
from accuracy_core.schemas import RunDir

if TYPE_CHECKING:
    import torch

    from accuracy_core.capture.kv.files import ReferenceKv

CACHES = "kv_caches.safetensors"


def save_caches(run_dir: RunDir, index: int, files: TargetFiles, layers: Sequence[int], reference: ReferenceKv) -> None:
    """`prompt_<i>/kv_analysis/kv_caches.safetensors`: `fp32.kv.<layer>.key`, `dtype.…` and `target.…` of every layer.

    (kv_heads, positions, head_dim) each, in the dtypes they have.
    """
    from safetensors.torch import save_file

    from accuracy_core.capture.kv.files import layers_of

    tensors: dict[str, torch.Tensor] = {}
    for layer in layers_of(files, layers, reference):
        for which in ("key", "value"):
            side = layer.key if which == "key" else layer.value
            name = kv_tensor_name(layer.layer, which)
            for prefix, tensor in (("fp32", side.fp32), ("dtype", side.expected), ("target", side.target)):
                tensors[f"{prefix}.{name}"] = tensor.contiguous()
    path = run_dir.prompt(index) / "kv_analysis" / CACHES
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(path, Path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            save_file(tensors, str(temporary))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:
        local = Path(folder) / CACHES
        save_file(tensors, str(local))
        path.upload_from(local)
