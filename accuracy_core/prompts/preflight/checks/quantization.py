"""Does every quantised weight have a scale that can be its own?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.limits import limits
from accuracy_core.prompts.preflight.registry import preflight_check, remark, unmeasured, wrong
from accuracy_core.schemas import Finding

#: largest number of each
_LARGEST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0, "I8": 127.0}
_SCALES = ("weight_scale", "weight_scale_inv", "scales")
_FIX = "take the weights and their scales from one revision of the checkpoint, or quantise it again"


@preflight_check("quantization", "checkpoint", "do quantised weights and their scales belong together?")
def check_quantization(facts: PreflightFacts) -> Iterator[Finding]:
    """Existence and shape from the headers; values (finite, positive, no reciprocals) from the scales themselves."""
    if not facts.tensors:
        yield unmeasured("quantization", "the weights' headers were not read")
        return
    declared = quantization(facts.config)
    narrow = [name for name, info in facts.tensors.items() if info.dtype in _LARGEST and name.endswith(".weight")]
    method = facts.spec.quantization or declared.get("quant_method")
    if narrow and not declared:
        yield wrong(
            "quantization",
            f"{len(narrow)} weights are stored in 8 bits, and config.json has no quantization_config",
            "restore quantization_config in config.json: without it the bytes are read as plain numbers",
        )
    if declared and not narrow and method == "fp8":
        yield remark("quantization", "the checkpoint declares fp8 and stores wide weights: the engine quantises them")
    for name in narrow:
        problem = _problem(facts, name)
        if problem:
            yield wrong("quantization", f"{name}: {problem}", _FIX)
            return  # one is enough to say; the rest follows from the same file
    if facts.spec.kv_cache_dtype.startswith("fp8") and not any(
        name.endswith((".k_scale", ".kv_scale")) for name in facts.tensors
    ):
        yield remark(
            "quantization",
            "the KV cache is fp8 and the checkpoint has no KV scales: the engine takes 1.0",
            "calibrate KV scales where keys or values exceed 448",
        )


def quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("quantization_config") or config.get("compression_config")
    return found if isinstance(found, Mapping) else {}


def _problem(facts: PreflightFacts, weight: str) -> str:
    """Why the weight's scale cannot be its own; '' when it can."""
    stem, info = weight.removesuffix("weight"), facts.tensors[weight]
    scale = next((stem + name for name in _SCALES if stem + name in facts.tensors), None)
    if scale is None:
        return "it has no scale"
    shape, block = facts.tensors[scale].shape, block_size(facts.config)
    if not _fits(shape, info.shape, block):
        blocks = f" in blocks of {block[0]} × {block[1]}" if block else ""
        return f"its scale {scale} is {shape}, the weight has {info.shape[0]} rows{blocks}"
    return _wrong_values(facts.folder, scale, _LARGEST[info.dtype]) if facts.folder is not None else ""


def _fits(scale: tuple[int, ...], weight: tuple[int, ...], block: tuple[int, int] | None) -> bool:
    """One scale for the tensor, one a row, or one a block where the config says that there are blocks."""
    if math.prod(scale) == 1 or scale in ((weight[0],), (weight[0], 1)):
        return True
    return block is not None and scale == tuple(-(-size // part) for size, part in zip(weight, block, strict=False))


def block_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a scale, as fp8 and compressed-tensors write it; None: no blocks."""
    declared = quantization(config)
    groups = declared.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, Mapping) else []
    for size in (declared.get("weight_block_size"), *(item.get("block_structure") for item in weights)):
        if isinstance(size, list) and len(size) == 2:
            return int(size[0]), int(size[1])
    return None


def _wrong_values(folder: Path, scale: str, largest: float) -> str:
    import torch

    from accuracy_core.prompts.preflight.gather import read_tensor

    values = read_tensor(folder, scale).float()
    if not bool(torch.isfinite(values).all()):
        return f"its scale {scale} has NaN or infinite values"
    if not bool((values > 0).all()):
        return f"its scale {scale} has zero or negative values"
    reach = float(values.max()) * largest
    if reach > limits().largest_weight:
        return f"its scale {scale} lets weights reach {reach:.3g}: is it the reciprocal?"
    return ""
