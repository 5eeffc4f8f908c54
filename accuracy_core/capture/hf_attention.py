"""What attention kernels of a transformers model are given and what they return, through its attention interface.

Every attention module that follows transformers' interface asks `ALL_ATTENTION_FUNCTIONS` for a function at each
forward. While somebody listens, that lookup finds a function that wraps the configured one; nothing in the model or its
configuration changes, and modules that nobody listens to are passed through.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn

_LISTENERS: WeakKeyDictionary[nn.Module, list[AttentionListener]] = WeakKeyDictionary()
_INSTALLED: dict[str, int] = {}
_LOCK = threading.Lock()


class AttentionListener(Protocol):
    """Sees, and may change, one attention module's kernel call."""

    def on_inputs(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query (1, heads, new tokens, head_dim); key and value (1, kv_heads, all tokens, head_dim)."""
        ...

    def on_output(self, output: torch.Tensor) -> torch.Tensor:
        """(1, new tokens, heads, head_dim)."""
        ...


def uses_attention_interface(module: nn.Module) -> bool:
    """Whether the module's forward looks its kernel up in transformers' attention interface."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None or "ALL_ATTENTION_FUNCTIONS" not in code.co_names:
        return False
    return _implementation(module) != "eager" or _own_eager(module) is not None


@contextmanager
def listening(listeners: dict[nn.Module, AttentionListener]) -> Iterator[None]:
    """Let each listener see the kernel calls of its module. Contexts may overlap in any order."""
    names = {_implementation(module) for module in listeners}
    with _LOCK:
        for module, listener in listeners.items():
            _LISTENERS.setdefault(module, []).append(listener)
        for name in names:
            _install(name)
    try:
        yield
    finally:
        with _LOCK:
            for module, listener in listeners.items():
                remaining = [item for item in _LISTENERS.get(module, []) if item is not listener]
                _LISTENERS[module] = remaining
            for name in names:
                _uninstall(name)


class _Dispatcher:
    """Stands in for the attention function of one implementation name; `original` None: each model file's own eager."""

    def __init__(self, original: Callable[..., Any] | None) -> None:
        self.original = original

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        function = self.original or _own_eager(module)
        if function is None:
            raise KeyError(f"{type(module).__name__} has no eager attention function of its own")
        listeners = list(_LISTENERS.get(module, ()))
        for listener in listeners:
            query, key, value = listener.on_inputs(query, key, value)
        output, weights = function(module, query, key, value, *args, **kwargs)
        for listener in listeners:
            output = listener.on_output(output)
        return output, weights


def _install(name: str) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    _INSTALLED[name] = _INSTALLED.get(name, 0) + 1
    current = ALL_ATTENTION_FUNCTIONS.get(name)
    if not isinstance(current, _Dispatcher):
        ALL_ATTENTION_FUNCTIONS[name] = _Dispatcher(current)  # this instance only: the global mapping stays as it is


def _uninstall(name: str) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    _INSTALLED[name] -= 1
    if _INSTALLED[name] == 0 and isinstance(ALL_ATTENTION_FUNCTIONS.get(name), _Dispatcher):
        original = ALL_ATTENTION_FUNCTIONS[name].original
        del ALL_ATTENTION_FUNCTIONS[name]
        if original is not None and ALL_ATTENTION_FUNCTIONS.get(name) is not original:
            ALL_ATTENTION_FUNCTIONS[name] = original


def _implementation(module: nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager")


def _own_eager(module: nn.Module) -> Callable[..., Any] | None:
    function = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    return function if callable(function) else None
