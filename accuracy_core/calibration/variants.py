"""Equally right ways to run a model in low precision. What they differ by is noise, and no tolerance may reject it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from accuracy_core.calibration.material import Ids, Rows, forward_rows
from accuracy_core.calibration.random_model import decoder_layers


@dataclass(frozen=True)
class Variant:
    """`run(model, ids, rows)` gives the same rows as `forward_rows`, computed another way."""

    name: str
    what: str
    run: Callable[[Any, Sequence[Ids], int], Rows]


def _eager(model: Any, ids: Sequence[Ids], rows: int) -> Rows:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        return forward_rows(model, ids, rows)
    finally:
        model.set_attn_implementation(before)


def _float32_residual(model: Any, ids: Sequence[Ids], rows: int) -> Rows:
    with float32_residual(model):
        return forward_rows(model, ids, rows)


@torch.inference_mode()
def _batched(model: Any, ids: Sequence[Ids], rows: int) -> Rows:
    """All prompts in one batch: other shapes of the products, other kernels. They have one length: no padding."""
    logits = model(input_ids=torch.tensor(list(ids)), use_cache=False).logits[:, -rows:].float()
    return list(logits)


@torch.inference_mode()
def _stepwise(model: Any, ids: Sequence[Ids], rows: int) -> Rows:
    """Prefill, then one token at a time through the KV cache."""
    found = []
    for prompt in ids:
        first = len(prompt) - rows + 1
        output = model(input_ids=torch.tensor([prompt[:first]]), use_cache=True)
        kept = [output.logits[0, -1:]]
        for token in prompt[first:]:
            output = model(input_ids=torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
            kept.append(output.logits[0, -1:])
        found.append(torch.cat(kept).float())
    return found


def _two_threads(model: Any, ids: Sequence[Ids], rows: int) -> Rows:
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before != 2 else 1)
    try:
        return forward_rows(model, ids, rows)
    finally:
        torch.set_num_threads(before)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("fused", "fused attention, one pass, residual stream in the target's dtype", forward_rows),
        Variant("eager", "attention as separate products and softmax", _eager),
        Variant("float32_residual", "residual stream kept in float32", _float32_residual),
        Variant("batched", "all prompts in one batch", _batched),
        Variant("stepwise", "prefill, then one token at a time through the KV cache", _stepwise),
        Variant("threads", "another number of threads", _two_threads),
    )
}


@contextmanager
def float32_residual(model: Any) -> Iterator[None]:
    """Inside, the residual stream of a low-precision model is float32; blocks still compute in the model's dtype.

    Embeddings are widened, what enters a norm's consumers is narrowed again; sums then promote to float32.
    """
    dtype = model.dtype
    with ExitStack() as stack:
        handle = model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out.float())
        stack.callback(handle.remove)
        for name, module in model.named_modules():
            if name.endswith("rotary_emb"):  # its dtype follows the stream's, and queries' follow its
                handle = module.register_forward_hook(lambda _m, _a, out: _narrowed(out, dtype))
                stack.callback(handle.remove)
        for module in _norms(model):
            handle = module.register_forward_hook(lambda _m, _a, out: out.to(dtype))
            stack.callback(handle.remove)
        yield


def _narrowed(angles: Any, dtype: torch.dtype) -> Any:
    """Cosines and sines in `dtype`; complex angles, which are applied in float32 anyway, as they are."""
    return tuple(part.to(dtype) for part in angles) if isinstance(angles, tuple) else angles


def _norms(model: Any) -> list[Any]:
    """Norms that read the residual stream: those directly in a layer that come before a block, and the last one."""
    found = []
    for layer in decoder_layers(model):
        names = [name for name, _ in layer.named_children() if "norm" in name or name.startswith("ln")]
        sandwich = "pre_feedforward_layernorm" in names  # there the others follow a block and are added to the stream
        wanted = ("input_layernorm", "pre_feedforward_layernorm") if sandwich else tuple(names)
        found += [getattr(layer, name) for name in names if name in wanted]
    base = model.base_model
    last = next((getattr(base, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(base, name)), None)
    return found if last is None else [*found, last]
