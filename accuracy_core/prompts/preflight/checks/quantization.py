"""Does every quantised weight have a scale that can be its own?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import preflight_check, remark, unmeasured, wrong
from accuracy_core.schemas import Finding

_NARROW = ("F8_E4M3", "F8_E5M2", "I8")
_SCALES = ("weight_scale", "weight_scale_inv", "scales")
_FIX = "take the weights and their scales from one revision of the checkpoint, or quantise it again"


@preflight_check("quantization", "checkpoint", "do quantised weights and their scales belong together?")
def check_quantization(facts: PreflightFacts) -> Iterator[Finding]:
    """Existence and shape from the headers; values (finite, positive) from the scales themselves."""
    if not facts.tensors:
        yield unmeasured("quantization", "the weights' headers were not read")
        return
    declared = quantization(facts.config)
    narrow = [name for name, info in facts.tensors.items() if info.dtype in _NARROW and name.endswith(".weight")]
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
    stem = weight.removesuffix("weight")
    scale = next((stem + name for name in _SCALES if stem + name in facts.tensors), None)
    if scale is None:
        return "it has no scale"
    shape, rows = facts.tensors[scale].shape, facts.tensors[weight].shape[0]
    elements = 1
    for side in shape:
        elements *= side
    blocks = len(shape) == 2 and shape[0] <= rows and shape[1] <= facts.tensors[weight].shape[-1]
    if elements != 1 and shape[0] != rows and not (blocks and rows % max(shape[0], 1) < rows):
        return f"its scale {scale} is {shape}, the weight has {rows} rows"
    if len(shape) == 1 and elements not in (1, rows):
        return f"its scale {scale} has {elements} values, the weight has {rows} rows"
    if facts.folder is not None:
        import torch

        from accuracy_core.prompts.preflight.gather import read_tensor

        values = read_tensor(facts.folder, scale).float()
        if not bool(torch.isfinite(values).all()):
            return f"its scale {scale} has NaN or infinite values"
        if not bool((values > 0).all()):
            return f"its scale {scale} has zero or negative values"
    return ""
