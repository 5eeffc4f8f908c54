"""Changing what vLLM's objects hold or do, so that it can be put back."""

from typing import Any, Callable, List

#: what puts changes back, in order of the changes
Undo = List[Callable[[], None]]


def set_attribute(holder: Any, name: str, value: Any, undo: Undo) -> None:
    """Set an attribute, and note how to put the old one back."""
    missing = object()
    before = vars(holder).get(name, missing)

    def put_back() -> None:
        if before is missing:
            delattr(holder, name)
        else:
            setattr(holder, name, before)

    setattr(holder, name, value)
    undo.append(put_back)


def wrap(holder: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]], undo: Undo) -> None:
    """Let `holder.name(...)` be `make(the right one)(...)`."""
    set_attribute(holder, name, make(getattr(holder, name)), undo)


def take_back(undo: Undo) -> None:
    """Put everything back, the last change first."""
    while undo:
        undo.pop()()
