"""The two references of a three-way comparison: FP32 greedy, and the target's dtype teacher-forced along its tokens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from accuracy_core.errors import NotMeasuredError
from accuracy_core.goldens.capture import Capture
from accuracy_core.goldens.fp8_checkpoint import DEQUANTIZER, check_fp8_checkpoint, is_fp8, load_fp8_checkpoint
from accuracy_core.goldens.fp8_kv import fp8_kv_cache, kv_scales
from accuracy_core.goldens.memory import peak_memory_gb
from accuracy_core.goldens.narrow_products import use_float32_kernels
from accuracy_core.goldens.prompt_ids import Prompt, check_lengths, tokenize_prompts
from accuracy_core.goldens.reference_config import (
    FP8,
    attention_implementation,
    check_kv_cache_dtype,
    check_not_quantized,
    load_config,
    target_dtype_name,
    torch_dtype,
)
from accuracy_core.goldens.reference_model import ModelLoader, load_reference_model, one_model, torch_threads
from accuracy_core.goldens.teacher_forcing import check_finite, forced_pass, greedy_rows

logger = logging.getLogger(__name__)

#: loading a model changes torch's default dtype for all threads, and an FP8 cache replaces transformers' attention: a
#: reference that another thread computes meanwhile would be another one, or none
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class ReferenceRequest:
    """A checked request: everything that both references depend on."""

    checkpoint: str
    config: Any
    dtype: str
    prompts: list[list[int]]
    output_length: int
    forced: list[list[int]] | None
    loader: ModelLoader
    attn_implementation: str
    num_threads: int = 1
    capture: Capture | None = None
    loader_name: str = "transformers"
    kv_cache: str = "auto"


def prepare_request(
    model_checkpoint: str,
    target_dtype: str | torch.dtype,
    output_length: int,
    prompts: Sequence[Prompt],
    tokenizer: Any = None,
    *,
    kv_cache_dtype: str = "auto",
    config: Any = None,
    model_loader: ModelLoader | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
    forced_token_ids: Sequence[Sequence[int]] | None = None,
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
    num_threads: int = 1,
    capture: Capture | None = None,
) -> ReferenceRequest:
    """Check everything that can be checked without loading weights. Raises ConfigurationError or NotMeasuredError."""
    prompt_ids = tokenize_prompts(prompts, tokenizer)
    full_config = load_config(str(model_checkpoint), config, hf_overrides, trust_remote_code=trust_remote_code)
    dtype = target_dtype_name(target_dtype, full_config)
    kv_cache = check_kv_cache_dtype(kv_cache_dtype, dtype)
    forced = check_lengths(prompt_ids, output_length, full_config, forced_token_ids)
    attention = attention_implementation(full_config, attn_implementation)
    if kv_cache == FP8:
        if attention == "eager":
            raise NotMeasuredError(
                "an FP8 KV cache has no reference with eager attention", fix="compare with kv_cache_dtype='auto'"
            )
        attention = "sdpa"
    loader_name = "transformers"
    if model_loader is None:
        load: Callable[..., Any] = load_reference_model
        if is_fp8(full_config):
            check_fp8_checkpoint(str(model_checkpoint))
            load, loader_name = load_fp8_checkpoint, DEQUANTIZER
        else:
            check_not_quantized(full_config)
        model_loader = partial(load, attn_implementation=attention, trust_remote_code=trust_remote_code)
    return ReferenceRequest(
        checkpoint=str(model_checkpoint),
        config=full_config,
        dtype=dtype,
        prompts=prompt_ids,
        output_length=output_length,
        forced=forced,
        loader=model_loader,
        attn_implementation=attention,
        num_threads=num_threads,
        capture=capture,
        loader_name=loader_name,
        kv_cache=kv_cache,
    )


def generate_three_way_reference_logits(
    model_checkpoint: str,
    target_dtype: str | torch.dtype,
    output_length: int,
    prompts: Sequence[Prompt],
    tokenizer: Any = None,
    kv_cache_dtype: str = "auto",
    config: Any = None,
    model_loader: ModelLoader | None = None,
    *,
    hf_overrides: Mapping[str, Any] | None = None,
    forced_token_ids: Sequence[Sequence[int]] | None = None,
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
    num_threads: int = 1,
) -> dict[str, list[Any]]:
    """Compute both references of every prompt, without a cache.

    FP32 decodes greedily `output_length` tokens past EOS, and is freed before the target's dtype is loaded, which is
    teacher-forced along FP32's tokens. All logits come from one forward pass per prompt over prompt and tokens; that
    decoding step by step gives the same in FP32 is checked (see `teacher_forcing`). With `forced_token_ids` (one list
    of `output_length` ids per prompt) both follow those instead and nothing is decoded.

    Args:
        prompts: texts, tokenised with the tokenizer's special tokens, or lists of token ids.
        target_dtype: `bfloat16`, `float16`, `float32`, or `auto` for the checkpoint's own.
        config: transformers configuration to build from; default the checkpoint's.
        model_loader: `loader(model_checkpoint, dtype, config=config)`, called for FP32 and then for the target's dtype.
        num_threads: intra-op threads of torch.

    Returns lists with one entry per prompt: `fp32_logits` and `dtype_logits`, float32 (tokens, 1, vocab), the latter
    exactly representable in the target's dtype; `input_ids` `[[int, …]]`; `token_ids` `[int, …]`.

    Raises ConfigurationError (bad input) and NotMeasuredError (quantised KV cache or checkpoint) before loading,
    ReferenceError_ for non-finite logits or a loader that returns the wrong thing.
    """
    request = prepare_request(
        model_checkpoint,
        target_dtype,
        output_length,
        prompts,
        tokenizer,
        kv_cache_dtype=kv_cache_dtype,
        config=config,
        model_loader=model_loader,
        hf_overrides=hf_overrides,
        forced_token_ids=forced_token_ids,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        num_threads=num_threads,
    )
    computed = list(compute_references(request, range(len(request.prompts))))
    return {
        "fp32_logits": [tensors["fp32_logits"][0] for tensors in computed],
        "dtype_logits": [tensors["dtype_logits"][0] for tensors in computed],
        "input_ids": [tensors["input_ids"][0].tolist() for tensors in computed],
        "token_ids": [tensors["token_ids"][0].tolist() for tensors in computed],
    }


def compute_references(request: ReferenceRequest, indices: Sequence[int]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Tensors of the prompts at `indices`, in order: `fp32_logits` and `dtype_logits` float32 (tokens, 1, vocab),
    `input_ids` int64 (1, prompt length), `token_ids` int64 (tokens,). Raises as the function above."""
    prompts = [request.prompts[index] for index in indices]
    dtype, capture = torch_dtype(request.dtype), request.capture
    with _ONE_AT_A_TIME, torch_threads(request.num_threads):
        with one_model(request.loader, request.checkpoint, torch.float32, request.config) as holder:
            if request.forced is None:
                rows = greedy_rows(holder[0], prompts, request.output_length, capture)
                tokens, fp32 = [row.tokens for row in rows], [(row.logits, row.captured) for row in rows]
                del rows
            else:
                tokens = [request.forced[index] for index in indices]
                fp32 = [forced_pass(holder[0], *pair, capture) for pair in zip(prompts, tokens, strict=True)]
        for logits, _ in fp32:
            check_finite(logits, "FP32")
        with one_model(request.loader, request.checkpoint, dtype, request.config) as holder:
            use_float32_kernels(holder[0], dtype)
            scales = kv_scales(request.checkpoint) if request.kv_cache == FP8 else {}
            for index, prompt in enumerate(prompts):
                rounded = request.kv_cache == FP8
                with fp8_kv_cache(holder[0], len(prompt), scales) if rounded else nullcontext():
                    narrow, captured = forced_pass(holder[0], prompt, tokens[index], capture)
                check_finite(narrow, request.dtype)
                wide, captured_wide = fp32[index]
                yield {
                    "fp32_logits": [wide.unsqueeze(1)],
                    "dtype_logits": [narrow.to(dtype).to(torch.float32).unsqueeze(1)],
                    "input_ids": [torch.tensor([prompt])],
                    "token_ids": [torch.tensor(tokens[index])],
                    **{f"fp32.{name}": tensors for name, tensors in captured_wide.items()},
                    **{f"dtype.{name}": tensors for name, tensors in captured.items()},
                }
    logger.info("references of %d prompts: peak memory of the process %.1f GB", len(prompts), peak_memory_gb())
