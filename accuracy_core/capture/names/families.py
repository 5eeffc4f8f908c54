"""How vLLM's modules of a model family correspond to Hugging Face's.

Read from `vllm/model_executor/models/{llama,qwen2,qwen3,gemma2,gemma3,mixtral,qwen3_moe,gpt_oss}.py` of vLLM 0.32.
Three things differ throughout: projections are fused (`qkv_proj`, `gate_up_proj`); norms add the residual and
return (normalised, residual stream), so a layer's true output is the second output of the *next* norm; experts of one
layer are one module.

Templates: `{L}` is the layer, `{N}` the norm after layer L (the next layer's, or the model's last).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: which part of a fused output; `hidden`: without columns that the platform added as padding
Part = Literal["", "q", "k", "v", "gate", "up", "hidden"]


@dataclass(frozen=True)
class Place:
    """Where a canonical tap's value is read (`raw`), and where it is put (`put`, by default the same place).

    The last of several `put` places gets the rows divided by `put_scale`; those marked `zero` get zeros, because the
    engine adds them to the first.
    """

    raw: str
    part: Part = ""
    put: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    #: "" or "embedding_normalizer": what the engine multiplies by after the place where rows are put
    put_scale: str = ""


@dataclass(frozen=True)
class Family:
    """Templates of one family: canonical tap -> place. Keys of `layer` are names below `model.layers.{L}`."""

    name: str
    model: Mapping[str, Place]
    layer: Mapping[str, Place] = field(default_factory=dict)


_L = "model.layers.{L}"


def _attention(prefix: str) -> dict[str, Place]:
    at = f"{_L}.{prefix}"
    return {
        "self_attn.q_proj": Place(f"{at}.qkv_proj:out0", "q"),
        "self_attn.k_proj": Place(f"{at}.qkv_proj:out0", "k"),
        "self_attn.v_proj": Place(f"{at}.qkv_proj:out0", "v"),
        "self_attn.query": Place(f"{at}.attn:query"),
        "self_attn.key": Place(f"{at}.attn:key"),
        "self_attn.value": Place(f"{at}.attn:value"),
        "self_attn.attn": Place(f"{at}.attn:attn"),
        "self_attn.o_proj": Place(f"{at}.o_proj:out0"),
        "self_attn": Place(f"{at}:out0"),
    }


def _residual(norm: str, name: str) -> dict[str, Place]:
    """The residual stream that a fused norm returns; to put it, the norm is given it whole and nothing to add."""
    return {name: Place(f"{norm}:out1", put=(f"{norm}:in0",), zero=(f"{norm}:in1",))}


def _norm(name: str) -> dict[str, Place]:
    return {name: Place(f"{_L}.{name}:out0")}


_EMBEDDING = {"model.embed_tokens": Place("model.embed_tokens:out0")}
_TOP = {**_EMBEDDING, "model.norm": Place("model.norm:out0")}
_GEMMA_TOP = {
    **_TOP,
    # the normaliser is multiplied outside of embed_tokens; the first norm is given the product
    "model.embed_tokens": Place(
        "model.layers.0.input_layernorm:in0", put=("model.embed_tokens:out0",), put_scale="embedding_normalizer"
    ),
}
_MLP = {
    "mlp.gate_proj": Place(f"{_L}.mlp.gate_up_proj:out0", "gate"),
    "mlp.up_proj": Place(f"{_L}.mlp.gate_up_proj:out0", "up"),
    # the activation itself may be one module that all layers share
    "mlp.act": Place(f"{_L}.mlp.down_proj:in0"),
    "mlp.down_proj": Place(f"{_L}.mlp.down_proj:out0"),
    "mlp": Place(f"{_L}.mlp:out0"),
}
_QK_NORMS = {
    "self_attn.q_norm": Place(f"{_L}.self_attn.q_norm:out0"),
    "self_attn.k_norm": Place(f"{_L}.self_attn.k_norm:out0"),
}


def _experts(block: str, router: str) -> dict[str, Place]:
    at = f"{_L}.{block}"
    return {
        f"mlp.{router}": Place(f"{at}.{router}:out0"),
        "mlp.experts": Place(f"{at}.experts:out0", "hidden"),
        "mlp": Place(f"{at}:out0"),
    }


_LLAMA_FRAME = {
    **_norm("input_layernorm"),
    **_residual(f"{_L}.post_attention_layernorm", "residual_mid"),
    **_norm("post_attention_layernorm"),
    **_residual("{N}", ""),
}
_GEMMA_FRAME = {
    **_norm("input_layernorm"),
    **_norm("post_attention_layernorm"),
    **_residual(f"{_L}.pre_feedforward_layernorm", "residual_mid"),
    **_norm("pre_feedforward_layernorm"),
    **_norm("post_feedforward_layernorm"),
    **_residual("{N}", ""),
}
_SELF = _attention("self_attn")

_LLAMA = Family("llama", _TOP, {**_LLAMA_FRAME, **_SELF, **_MLP})
_QWEN3 = Family("qwen3", _TOP, {**_LLAMA_FRAME, **_SELF, **_QK_NORMS, **_MLP})
_GEMMA2 = Family("gemma2", _GEMMA_TOP, {**_GEMMA_FRAME, **_SELF, **_MLP})
_GEMMA3 = Family("gemma3", _GEMMA_TOP, {**_GEMMA_FRAME, **_SELF, **_QK_NORMS, **_MLP})
_MIXTRAL = Family("mixtral", _TOP, {**_LLAMA_FRAME, **_SELF, **_experts("block_sparse_moe", "gate")})
# a layer is either dense or sparse: plan_taps takes the places that exist
_QWEN3_MOE = Family("qwen3_moe", _TOP, {**_LLAMA_FRAME, **_SELF, **_QK_NORMS, **_MLP, **_experts("mlp", "gate")})
_GPT_OSS = Family(
    "gpt_oss",
    {**_TOP, "model.embed_tokens": Place("model.embedding:out0")},
    {**_LLAMA_FRAME, **_attention("attn"), **_experts("mlp", "router")},
)

_MLA = f"{_L}.self_attn.mla_attn"
# Multi-head latent attention: the cache holds one latent per token, so keys and values exist in the reference only.
_DEEPSEEK = Family(
    "deepseek",
    _TOP,
    {
        **_LLAMA_FRAME,
        **{
            f"self_attn.{name}": Place(f"{_L}.self_attn.{name}:out0")
            for name in ("q_proj", "q_a_layernorm", "q_b_proj", "kv_a_layernorm")
        },
        "self_attn.query": Place(f"{_MLA}.mla_attn:query"),
        "self_attn.attn": Place(f"{_MLA}.mla_attn:attn"),
        "self_attn.o_proj": Place(f"{_MLA}.o_proj:out0"),
        "self_attn": Place(f"{_L}.self_attn:out0"),
        **_MLP,
        "mlp.gate": Place(f"{_L}.mlp.gate:out0"),
        "mlp.shared_experts": Place(f"{_L}.mlp.shared_experts:out0"),
    },
)

#: `model_type` of a configuration -> family
FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "mixtral": _MIXTRAL,
    "qwen3_moe": _QWEN3_MOE,
    "gpt_oss": _GPT_OSS,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
}


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The family of a configuration (as a dictionary); None: there is no map for it."""
    return FAMILIES.get(str(config.get("model_type", "")))
