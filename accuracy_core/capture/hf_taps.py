"""Taking and putting tensors in a transformers model at canonical taps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from accuracy_core.capture.hf_attention import AttentionListener, listening
from accuracy_core.capture.hf_points import KERNEL_POINTS, Point, find_points, resolve_points
from accuracy_core.capture.hf_routing import is_router, route_again
from accuracy_core.capture.rows import TapValue, as_rows, like_original, put_rows
from accuracy_core.errors import InputMismatchError

Values = torch.Tensor | TapValue | Sequence[TapValue]


def available_taps(model: nn.Module) -> list[str]:
    """Canonical taps of a transformers model, children before their parents (the order of a run: `collect`)."""
    return list(find_points(model))


class HfTaps:
    """Records rows at `taps` while the model runs, and optionally replaces them. A context manager.

    Inside it, each forward over one sequence (batch of one), or over the next tokens of that sequence with a KV cache,
    adds its rows; positions count from 0 since entering or the last `collect`. Rows are recorded as computed, in the
    model's dtype, then `replace` is put in their place and flows on: "record, then replace". `replace` may name
    further taps, which are then not recorded.

    `replace` maps a tap to rows (positions from 0, features), to a `TapValue`, or to several.

    `key` and `value` are taken on their way into the KV cache where there is one, so that what a cache does to them
    shows in `attn` alone; rows put there are what the cache keeps. A latent cache is passed by.
    Expert choice follows replaced router logits. `residual_mid` is replaced for the MLP, not in the residual sum.

    Raises ConfigurationError for taps that the model lacks, InputMismatchError for a batch, or rows that do not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[str],
        *,
        replace: Mapping[str, Values] | None = None,
    ) -> None:
        self._model = model
        self._recorded = set(taps)
        self._values = {tap: _values(given) for tap, given in (replace or {}).items()}
        self._points = resolve_points(model, [*taps, *self._values])
        self._exits: ExitStack | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what was recorded; the next forward begins at position 0."""
        self._rows: dict[str, list[torch.Tensor]] = {}
        self._start = self._tokens = 0

    def collect(self) -> dict[str, torch.Tensor]:
        """Tap -> (positions, features) in the model's dtype, on the CPU, in the order in which the taps were reached.

        A tap that was never reached is missing. `lm_head` has the rows for which logits were asked. Resets.
        """
        collected = {tap: rows[0] if len(rows) == 1 else torch.cat(rows) for tap, rows in self._rows.items()}
        self.reset()
        return collected

    def __enter__(self) -> HfTaps:
        self.reset()
        listeners: dict[nn.Module, AttentionListener] = {}
        with ExitStack() as stack:
            before = self._model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)
            stack.callback(before.remove)
            for point in self._points:
                if point.kind in KERNEL_POINTS:
                    listener = listeners.setdefault(point.module, _Kernel(self))
                    assert isinstance(listener, _Kernel)
                    listener.taps[point.kind] = point.tap
                elif point.kind == "input":
                    input_hook = point.module.register_forward_pre_hook(
                        partial(self._at_input, point), with_kwargs=True
                    )
                    stack.callback(input_hook.remove)
                else:
                    at = self._at_logits if point.kind == "logits" else self._at_output
                    hook = point.module.register_forward_hook(partial(at, point), with_kwargs=True)
                    stack.callback(hook.remove)
            for module, listener in listeners.items():
                assert isinstance(listener, _Kernel)
                if "key" in listener.taps or "value" in listener.taps:
                    cache_hook = module.register_forward_pre_hook(listener.before_cache, with_kwargs=True)
                    stack.callback(cache_hook.remove)
            if listeners:
                stack.enter_context(listening(listeners))
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._exits is not None:
            self._exits.close()
            self._exits = None

    def pass_rows(self, tap: str, rows: torch.Tensor, new: int | None = None) -> torch.Tensor:
        """Record the last `new` of these rows (default: all) and return those that flow on. Rows end at the last
        position of this forward."""
        recorded = rows if new is None else rows[rows.shape[0] - new :]
        if tap in self._recorded:
            self._rows.setdefault(tap, []).append(recorded.detach().to("cpu", copy=True))
        first = self._start + self._tokens - rows.shape[0]
        values = self._values.get(tap)
        return put_rows(rows, values, first, tap) if values else rows

    @property
    def tokens(self) -> int:
        """Tokens of the forward that is running."""
        return self._tokens

    def _begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", kwargs.get("inputs_embeds", args[0] if args else None))
        if not isinstance(ids, torch.Tensor) or ids.shape[0] != 1:
            shape = tuple(ids.shape) if isinstance(ids, torch.Tensor) else None
            raise InputMismatchError(f"taps are taken of one sequence at a time, got inputs of shape {shape}")
        self._start += self._tokens
        self._tokens = ids.shape[1]

    def _at_input(self, point: Point, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = None if args else next((key for key, item in kwargs.items() if isinstance(item, torch.Tensor)), None)
        given = args[0] if args else kwargs[str(name)]
        rows = as_rows(given, self._tokens)
        put = self.pass_rows(point.tap, rows, self._tokens)
        if put is rows:
            return None
        changed = like_original(put, given, self._tokens, None)
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, str(name): changed})

    def _at_output(
        self, point: Point, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        tensor = output[0] if isinstance(output, tuple) else output
        if not isinstance(tensor, torch.Tensor):
            return None
        like = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if isinstance(module, nn.Linear):  # its features are the last dimension, whatever the others are
            rows = tensor.reshape(-1, tensor.shape[-1])
        else:
            rows = as_rows(tensor, self._tokens, like)
        put = self.pass_rows(point.tap, rows, self._tokens)
        if put is rows:
            return None
        changed = like_original(put, tensor, self._tokens, like)
        if is_router(module, output):
            return route_again(module, args, kwargs, changed)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def _at_logits(
        self, point: Point, _module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any
    ) -> Any:
        logits = output[0] if isinstance(output, tuple) else output.logits
        rows = logits[0]
        put = self.pass_rows(point.tap, rows)
        if put is rows:
            return None
        if isinstance(output, tuple):
            return (put.unsqueeze(0), *output[1:])
        output.logits = put.unsqueeze(0)
        return output


class _Kernel:
    """The taps of one attention module's kernel."""

    def __init__(self, owner: HfTaps) -> None:
        self._owner = owner
        self._cache: _CacheTap | None = None
        self._cached = False
        self.taps: dict[str, str] = {}

    def before_cache(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stand between the attention module and its KV cache, if it is given one by its usual name."""
        self._cached = False
        cache = kwargs.get("past_key_values")
        if cache is None or hasattr(module, "kv_lora_rank"):
            return None
        if self._cache is None or self._cache.inner is not cache:
            self._cache = _CacheTap(self, cache)
        return args, {**kwargs, "past_key_values": self._cache}

    def on_update(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the new tokens, (1, kv_heads, new tokens, head_dim)."""
        self._cached = True
        return self._pass("key", key), self._pass("value", value)

    def on_inputs(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query = self._pass("query", query)
        if self._cached:
            return query, key, value
        return query, self._pass("key", key), self._pass("value", value)

    def _pass(self, kind: str, tensor: torch.Tensor) -> torch.Tensor:
        if kind not in self.taps:
            return tensor
        heads, count, width = tensor.shape[1:]
        rows = tensor[0].transpose(0, 1).reshape(count, -1)
        put = self._owner.pass_rows(self.taps[kind], rows, self._owner.tokens)
        return tensor if put is rows else put.reshape(count, heads, width).transpose(0, 1).unsqueeze(0)

    def on_output(self, output: torch.Tensor) -> torch.Tensor:
        if "attn" not in self.taps:
            return output
        if output.numel() % self._owner.tokens or self._owner.tokens not in output.shape[:-1]:
            raise InputMismatchError(
                f"attention returned shape {tuple(output.shape)} for {self._owner.tokens} tokens of one sequence"
            )
        rows = output.reshape(self._owner.tokens, -1)
        put = self._owner.pass_rows(self.taps["attn"], rows)
        return output if put is rows else put.reshape(output.shape)


class _CacheTap:
    """A KV cache as seen from one attention module; everything but `update` is the cache's own."""

    def __init__(self, kernel: _Kernel, inner: Any) -> None:
        self.inner = inner
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = self._kernel.on_update(keys, values)
        return self.inner.update(keys, values, *args, **kwargs)


def _values(given: Values) -> list[TapValue]:
    if isinstance(given, torch.Tensor):
        return [TapValue(given)]
    return [given] if isinstance(given, TapValue) else list(given)
