"""Closing ways from a submission to what measures it, before it is loaded."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any

#: events of sys.audit(3) that lead to other threads' frames or every object, or that switch hooks over all threads
_REFUSED = frozenset(
    {
        "sys.addaudithook", "sys.setprofile", "sys.settrace", "sys._current_frames", "sys._current_exceptions",
        "gc.get_objects", "gc.get_referrers", "gc.get_referents",
    }
)  # fmt: skip
#: C functions with which a thread could hide operators from the profiler, or end it
_SWITCHES = (
    "_enable_record_function", "_toggle_collection_dynamic", "_enable_profiler", "_disable_profiler",
    "_prepare_profiler", "_enable_profiler_legacy", "_disable_profiler_legacy", "_clear_callbacks", "_profiler_enabled",
    "_profiler_type",
)  # fmt: skip


class TamperingRefused(PermissionError):
    """The submission reached for what measures it."""


def seal(private: tuple[str, ...]) -> None:
    """Irrevocable, for the process. Modules whose names begin with one of `private` are forgotten: a submission that
    imports them gets copies of its own.

    Python code cannot undo it; machine code in the same process could, and is not what this stops.
    """
    _remove_switches()
    # a collection in the main thread would run finalizers and callbacks of the submission there
    gc.disable()
    for name in ("enable", "freeze", "unfreeze", "set_threshold"):
        setattr(gc, name, lambda *_: None)
    del gc.callbacks
    for name in [name for name in sys.modules if name.startswith(private)]:
        del sys.modules[name]
    sys.modules.setdefault("__main__", ModuleType("__main__"))  # libraries look for one
    sys.addaudithook(_refuser(_REFUSED, TamperingRefused))


def _refuser(refused: frozenset[str], error: type[Exception]) -> Any:
    # no global or builtin name inside: the submission could replace it
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in refused:
            raise error(event)
        if event == "import" and arguments[0] in ("gc", "_testcapi", "_testinternalcapi"):
            raise error(event)

    return hook


def _remove_switches() -> None:
    """Under every name that a loaded module has for them."""
    from torch._C import _autograd

    wanted = {id(getattr(_autograd, name)) for name in _SWITCHES if hasattr(_autograd, name)}
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if hasattr(module, "__dict__") else []:
            if id(value) in wanted:
                delattr(module, name)
