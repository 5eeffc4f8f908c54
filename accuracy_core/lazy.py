"""Public names of a package that load their modules when they are first used: importing the package stays fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `package`. `home`: name -> module that has it, `.module` being one of the package.

    A package that uses it has no module with one of these names: once loaded, that would stand for the name.
    """

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name], package), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return get, names
