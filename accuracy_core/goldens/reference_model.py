"""Loading a reference model, and checking that a loader gave what was asked for."""

from __future__ import annotations

import atexit
import gc
import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from accuracy_core.errors import ConfigurationError, ReferenceError_
from accuracy_core.goldens.memory import WEIGHT_SHARE, free_bytes, weight_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


logger = logging.getLogger(__name__)


class ModelLoader(Protocol):
    """Called once per dtype. Must return a model whose weights are in `dtype` on the CPU, in any training mode."""

    def __call__(self, model_checkpoint: str, dtype: torch.dtype, *, config: PreTrainedConfig) -> PreTrainedModel: ...


def load_reference_model(
    model_checkpoint: str,
    dtype: torch.dtype,
    *,
    config: PreTrainedConfig | None = None,
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
    memory_limit: int | None = None,
) -> PreTrainedModel:
    """Load a causal language model as it is, in `dtype`, on the CPU. Raises ConfigurationError if that fails.

    Weights beyond `memory_limit` bytes (default: most of the free memory) stay on the disk and are read layer by layer,
    with a message: slow, but the numbers are the same.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            model_checkpoint,
            dtype=dtype,
            config=config,
            attn_implementation=None if attn_implementation == "auto" else attn_implementation,
            trust_remote_code=trust_remote_code,
            **_offload(model_checkpoint, dtype, memory_limit),
        )
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise ConfigurationError(
            f"reference model {model_checkpoint} cannot be loaded in {dtype}: {error}",
            fix="check that transformers knows the architecture, or pass a model_loader",
        ) from error
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
    return model


def _offload(checkpoint: str, dtype: torch.dtype, memory_limit: int | None) -> dict[str, Any]:
    """Arguments that leave on the disk what does not fit; none if everything does."""
    limit = int(free_bytes() * WEIGHT_SHARE) if memory_limit is None else memory_limit
    needed = weight_bytes(checkpoint, dtype)
    if needed is None or needed <= limit:
        return {}
    logger.warning(
        "%s takes %.1f GB in %s, %.1f GB are to be had: layers that do not fit are read from the disk at each use",
        checkpoint, needed / 1e9, str(dtype).removeprefix("torch."), limit / 1e9,
    )  # fmt: skip
    folder = tempfile.mkdtemp(prefix="offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"device_map": "auto", "max_memory": {"cpu": limit}, "offload_folder": folder}


def check_loaded(model: Any, dtype: torch.dtype) -> PreTrainedModel:
    """`model` in evaluation mode. Raises ReferenceError_ unless it is a generating causal model in `dtype`."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise ReferenceError_(
            f"model_loader returned a {type(model).__name__}, not a transformers model that generates text",
            fix="return an AutoModelForCausalLM model",
        )
    found = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    # below FP32 some architectures keep single modules in FP32 on purpose; an FP32 reference must be FP32 throughout
    if dtype not in found or (dtype is torch.float32 and len(found) > 1):
        names = ", ".join(sorted(str(item) for item in found)) or "none"
        raise ReferenceError_(
            f"model_loader was asked for {dtype} and returned parameters in {names}",
            fix="load with dtype=dtype and do not convert afterwards",
        )
    offloaded = "disk" in (getattr(model, "hf_device_map", None) or {}).values()
    meta = [name for name, parameter in model.named_parameters() if parameter.is_meta and not offloaded]
    if meta:
        raise ReferenceError_(f"model_loader left parameters without data: {', '.join(meta[:3])}")
    return model.eval()


@contextmanager
def one_model(
    loader: ModelLoader, checkpoint: str, dtype: torch.dtype, config: PreTrainedConfig
) -> Iterator[list[Any]]:
    """The loaded model as the only item of a list; freed on leaving, before the next one is loaded.

    A list, so that the caller's variable does not keep the weights alive.
    """
    holder: list[Any] = [check_loaded(loader(checkpoint, dtype, config=config), dtype)]
    weights = [weakref.ref(parameter) for parameter in holder[0].parameters()]
    try:
        yield holder
    finally:
        holder.clear()
        if any(reference() is not None for reference in weights):  # held by a cycle; a collection takes 0.2 s and more
            gc.collect()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with `count` intra-op threads; one is the fastest on small machines (two were 1.6 times slower, measured)."""
    if count < 1:
        raise ConfigurationError(f"num_threads is {count}", fix="use 1 or more")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
