"""Reference logits through the cache: one golden per prompt."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from accuracy_core.goldens.capture import Capture
from accuracy_core.goldens.key import loader_identity
from accuracy_core.goldens.location import cache_directory
from accuracy_core.goldens.mapping import ReferenceGoldens
from accuracy_core.goldens.narrow_products import PRODUCTS
from accuracy_core.goldens.prompt_ids import Prompt
from accuracy_core.goldens.reference import ReferenceRequest, compute_references, prepare_request
from accuracy_core.goldens.reference_config import config_for_key
from accuracy_core.goldens.reference_model import ModelLoader
from accuracy_core.goldens.store import LOCK_TIMEOUT_S, get_or_compute_many
from accuracy_core.models import model_fingerprint, resolve_model


def get_cached_reference_goldens(
    model_id: str,
    model_checkpoint: str | os.PathLike[str],
    model_config: Any = None,
    tokenizer: Any = None,
    prompts: Sequence[Prompt] = (),
    output_length: int = 16,
    dtype: str | torch.dtype = "bfloat16",
    kv_cache_dtype: str = "auto",
    model_loader: ModelLoader | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    s3_uri: str | None = None,
    *,
    forced_token_ids: Sequence[Sequence[int]] | None = None,
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
    num_threads: int = 1,
    loader_version: str = "",
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    capture: Capture | None = None,
) -> ReferenceGoldens:
    """References of every prompt as `generate_three_way_reference_logits` computes them, cached.

    Each prompt has a golden of its own, so sets of prompts that overlap share it; a run's missing prompts are
    computed with one load of each model. `model_id` is written down but is not in the key: two names of one checkpoint
    share their goldens. `model_checkpoint` is a folder, `embedded`, or a hub id. `tokenizer` is needed for prompts that
    are texts. `loader_version` names the version of a `model_loader` that is not a plain function.

    Raises ConfigurationError and NotMeasuredError before loading, ReferenceError_ if there is no usable reference.
    """
    plan = plan_references(
        model_id,
        model_checkpoint,
        model_config,
        tokenizer,
        prompts,
        output_length,
        dtype,
        kv_cache_dtype,
        model_loader,
        hf_overrides,
        cache_dir,
        forced_token_ids=forced_token_ids,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        num_threads=num_threads,
        loader_version=loader_version,
        capture=capture,
    )
    goldens = get_or_compute_many(
        plan.key_configs,
        lambda indices: compute_references(plan.request, indices),
        cache_dir=cache_dir,
        s3_uri=s3_uri,
        provenance=plan.provenance,
        lock_timeout_s=lock_timeout_s,
    )
    return ReferenceGoldens(goldens)


@dataclass(frozen=True)
class ReferencePlan:
    """A checked request and what identifies the golden of each of its prompts. Nothing was loaded yet."""

    request: ReferenceRequest
    key_configs: list[dict[str, Any]]
    provenance: dict[str, Any]


def plan_references(
    model_id: str,
    model_checkpoint: str | os.PathLike[str],
    model_config: Any = None,
    tokenizer: Any = None,
    prompts: Sequence[Prompt] = (),
    output_length: int = 16,
    dtype: str | torch.dtype = "bfloat16",
    kv_cache_dtype: str = "auto",
    model_loader: ModelLoader | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    forced_token_ids: Sequence[Sequence[int]] | None = None,
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
    num_threads: int = 1,
    loader_version: str = "",
    capture: Capture | None = None,
) -> ReferencePlan:
    """Check the arguments of `get_cached_reference_goldens` and make the keys. Raises as it does before loading."""
    checkpoint = resolve_model(os.fspath(model_checkpoint), need_tokenizer=False)
    request = prepare_request(
        str(checkpoint),
        dtype,
        output_length,
        prompts,
        tokenizer,
        kv_cache_dtype=kv_cache_dtype,
        config=model_config,
        model_loader=model_loader,
        hf_overrides=hf_overrides,
        forced_token_ids=forced_token_ids,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        num_threads=num_threads,
        capture=capture,
    )
    shared = reference_key_config(
        request,
        checkpoint_digest=model_fingerprint(checkpoint, memo_dir=cache_directory(cache_dir) / "digests"),
        loader={"name": request.loader_name} if model_loader is None else loader_identity(model_loader, loader_version),
        kv_cache_dtype=request.kv_cache,
        trust_remote_code=trust_remote_code,
    )
    return ReferencePlan(
        request,
        [prompt_key_config(shared, request, index) for index in range(len(request.prompts))],
        _provenance(model_id, Path(checkpoint).name, num_threads),
    )


def reference_key_config(
    request: ReferenceRequest,
    *,
    checkpoint_digest: str,
    loader: Mapping[str, Any],
    kv_cache_dtype: str = "auto",
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """What the keys of all prompts have in common.

    Not in it: tensor parallel size, batch size, threads, host, paths and the model's name, none of which changes what a
    reference is.
    """
    import transformers

    return {
        "kind": "three-way reference logits",
        "checkpoint": checkpoint_digest,
        "config": config_for_key(request.config),
        "output_length": request.output_length,
        "dtype": request.dtype,
        **({} if kv_cache_dtype == "auto" else {"kv_cache_dtype": kv_cache_dtype}),
        "attn_implementation": request.attn_implementation,
        "generation": {"decoding": "greedy", "stop_at_eos": False, "logits": "one forward"},
        "loader": dict(loader),
        "trust_remote_code": trust_remote_code,
        "device": "cpu",
        **({} if request.dtype == "float32" else {"products": PRODUCTS}),
        **({} if request.capture is None else {"capture": dict(request.capture.identity())}),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }


def prompt_key_config(shared: Mapping[str, Any], request: ReferenceRequest, index: int) -> dict[str, Any]:
    """Key of one prompt: token ids, not text, since two texts are the same prompt only if they tokenise the same."""
    config = {**shared, "prompt_token_ids": request.prompts[index]}
    if request.forced is not None:
        config["forced_token_ids"] = request.forced[index]
    return config


def _provenance(model_id: str, checkpoint: str, num_threads: int) -> dict[str, Any]:
    return {
        "model_id": model_id,
        "checkpoint": checkpoint,
        "num_threads": num_threads,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
