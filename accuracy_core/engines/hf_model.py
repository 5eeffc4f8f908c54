"""Loading a transformers model as a target, with the threads it may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accuracy_core.engines.checkpoint import resolve_checkpoint
from accuracy_core.errors import EngineStartError
from accuracy_core.schemas import EngineSpec


def load_model(spec: EngineSpec, model: str | None = None) -> Any:
    """The causal language model of `spec`, on the CPU, in evaluation mode; `model`: its resolved checkpoint.

    Raises ConfigurationError when there is no such checkpoint, EngineStartError when it cannot be loaded.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = model or resolve_checkpoint(spec)
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=spec.trust_remote_code, **spec.hf_overrides)
        dtype = spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
        # transformers' SDPA takes an attention soft cap and drops it without a word (transformers 5.19)
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        loaded = AutoModelForCausalLM.from_pretrained(
            model,
            config=config,
            dtype=dtype,
            trust_remote_code=spec.trust_remote_code,
            **({"attn_implementation": "eager"} if capped else {}),
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineStartError(f"{model} cannot be loaded: {error}", fix="check the checkpoint") from error
    return loaded.eval()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with `count` intra-op threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
