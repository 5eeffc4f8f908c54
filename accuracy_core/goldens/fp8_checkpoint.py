"""References of checkpoints whose weights are FP8 (e4m3): the same bytes, dequantised on load.

Against weights that were never quantised, a right engine is off by the quantisation (about 0.14 of the logits' norm,
against 0.014 for the same bytes): that would hide every fault. Activations are not quantised in a reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accuracy_core.errors import ConfigurationError, NotMeasuredError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

#: part of a golden's key: changes with the meaning of what is below
DEQUANTIZER = "fp8 e4m3 times scale, float32"
_METHODS = ("fp8", "compressed-tensors")
#: tensors beside the weights that only an engine needs: scales of activations and of the KV cache
_NOT_WEIGHTS = (".input_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale")
_SCALES = (".weight_scale", ".weight_scale_inv")


def is_fp8(config: PreTrainedConfig) -> bool:
    """Whether the configuration says that the weights are FP8, in a form that is read here."""
    quantization = _quantization(config)
    if quantization.get("quant_method") not in _METHODS:
        return False
    groups = quantization.get("config_groups") or {}
    weights = [group.get("weights") or {} for group in groups.values()]
    return all(item.get("num_bits") == 8 and item.get("type") == "float" for item in weights)


def is_beside_weights(name: str) -> bool:
    """Whether a tensor of an FP8 checkpoint is a scale: no parameter of the dequantised model."""
    return name.endswith((*_SCALES, *_NOT_WEIGHTS))


def _quantization(config: PreTrainedConfig) -> dict[str, Any]:
    found = getattr(config, "quantization_config", None)
    if found is None or isinstance(found, dict):
        return found or {}
    return dict(found.to_dict())


def check_fp8_checkpoint(checkpoint: str) -> None:
    """Read the headers of the weights. Raises NotMeasuredError unless there are FP8 weights and each has a scale."""
    from safetensors import safe_open

    names: set[str] = set()
    narrow: set[str] = set()
    for file in sorted(Path(checkpoint).glob("*.safetensors")):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                names.add(name)
                if content.get_slice(name).get_dtype() == "F8_E4M3":
                    narrow.add(name)
    bare = sorted(name for name in narrow if not any(name.removesuffix(".weight") + end in names for end in _SCALES))
    if not narrow or bare:
        found = f"{bare[0]} has no scale" if bare else "no tensor is in e4m3"
        raise NotMeasuredError(
            f"the checkpoint is quantised (fp8), but {found}: there is no reference for it",
            fix="pass a model_loader that dequantises the same bytes",
        )


def dequantize(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None = None) -> torch.Tensor:
    """FP32 values (rows, columns) of an e4m3 weight.

    `scale`: one for the tensor (0-d or one element), one a row ((rows,) or (rows, 1)), or one a block of `block` rows
    and columns; the last ones may be cut off. Raises ConfigurationError if it is none of these.
    """
    wide, scale = weight.to(torch.float32), scale.to(torch.float32)
    if scale.numel() == 1:
        return wide * scale.reshape(())
    if scale.numel() == weight.shape[0]:
        return wide * scale.reshape(-1, 1)
    if block is not None and scale.shape == tuple(
        -(-size // part) for size, part in zip(wide.shape, block, strict=True)
    ):
        grown = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        return wide * grown[: wide.shape[0], : wide.shape[1]]
    raise ConfigurationError(f"a weight of shape {tuple(weight.shape)} has a scale of shape {tuple(scale.shape)}")


def load_fp8_checkpoint(
    model_checkpoint: str,
    dtype: torch.dtype,
    *,
    config: PreTrainedConfig,
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """The model with its FP8 weights dequantised in FP32 and rounded to `dtype` once. Raises ConfigurationError."""
    from transformers import AutoModelForCausalLM

    quantization = _quantization(config)
    size = quantization.get("weight_block_size")
    values = config.to_dict()
    values.pop("quantization_config", None)
    plain = type(config).from_dict(values)
    state = dict(_dequantized(model_checkpoint, dtype, (int(size[0]), int(size[1])) if size else None))
    model = AutoModelForCausalLM.from_config(
        plain,
        dtype=dtype,
        attn_implementation=None if attn_implementation == "auto" else attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = (
        set(getattr(model, "_tied_weights_keys", None) or ()) if plain.get_text_config().tie_word_embeddings else set()
    )
    lost = [name for name in missing if name not in tied]
    if lost or unexpected:
        raise ConfigurationError(
            f"weights of {model_checkpoint} do not fit its architecture: {len(lost)} missing, {len(unexpected)} new "
            f"({', '.join([*lost, *unexpected][:3])})",
            fix="pass a model_loader that dequantises the same bytes",
        )
    model.tie_weights()
    return model


def _dequantized(
    checkpoint: str, dtype: torch.dtype, block: tuple[int, int] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    scales: dict[str, torch.Tensor] = {}
    files = sorted(Path(checkpoint).glob("*.safetensors"))
    for file in files:  # small; may be in another file than their weight
        with safe_open(file, framework="pt") as content:
            scales |= {name: content.get_tensor(name) for name in content.keys() if name.endswith(_SCALES)}  # noqa: SIM118
    for file in files:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118
                if is_beside_weights(name):
                    continue
                tensor = content.get_tensor(name)
                if tensor.dtype is torch.float8_e4m3fn:
                    stem = name.removesuffix(".weight")
                    scale = next(scales[stem + end] for end in _SCALES if stem + end in scales)
                    tensor = dequantize(tensor, scale, block)
                yield name, tensor.to(dtype)
