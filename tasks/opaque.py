"""Arguments that Prefect passes on as they are."""

from __future__ import annotations

from typing import TypeVar, cast

from prefect.utilities.annotations import quote

T = TypeVar("T")


def opaque(value: T) -> T:
    """`value` for a task call, without Prefect walking through it in search of futures (slow for tensors)."""
    return cast(T, quote(value))
