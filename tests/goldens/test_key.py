"""Keys: the same for the same golden, different for anything that changes one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens import golden_key
from accuracy_core.goldens.key import check_key, loader_identity


def test_order_and_copies_do_not_matter() -> None:
    assert golden_key({"a": 1, "b": [1, 2]}) == golden_key({"b": [1, 2], "a": 1})


def test_key_is_pinned() -> None:
    """sha256 of 'assay-golden-1', a zero byte and the canonical text: a change would orphan every cached golden."""
    assert golden_key({"a": 1}) == "347994d21cbca3327cdc3543ff131a9d3401459787966770bb2dfbf0e01113fe"


@pytest.mark.parametrize(
    "other", [{"a": 2}, {"a": 1.0}, {"a": "1"}, {"a": True}, {"b": 1}, {"a": 1, "b": None}, {"a": [1]}]
)
def test_any_difference_is_another_key(other: dict[str, Any]) -> None:
    assert golden_key(other) != golden_key({"a": 1})


@pytest.mark.parametrize(
    "bad", [{}, {"a": float("nan")}, {1: "a"}, {"a": torch.tensor(1)}, {"a": {2: 3}}, {"a": b"x"}, [1], None]
)
def test_what_has_no_canonical_form(bad: Any) -> None:
    with pytest.raises(ConfigurationError):
        golden_key(bad)


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_only_keys_become_file_names(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="not the key"):
        check_key(bad)


def plain_loader(checkpoint: str, dtype: torch.dtype, *, config: Any, scale: float = 1.0) -> None:
    """Never called."""


def test_plain_loader_is_identified_by_its_source() -> None:
    identity = loader_identity(plain_loader)
    assert identity["name"].endswith("test_key.plain_loader")
    assert len(identity["source"]) == 64
    assert loader_identity(plain_loader) == identity


def test_arguments_of_a_partial_count() -> None:
    keys = {
        golden_key(loader_identity(loader))
        for loader in (
            plain_loader,
            functools.partial(plain_loader, scale=2.0),
            functools.partial(plain_loader, scale=3.0),
        )
    }
    assert len(keys) == 3


def make_closure(value: int) -> Callable[..., int]:
    def loader(*_: object, **__: object) -> int:
        return value

    return loader


class CallableLoader:
    def __call__(self, *_: object, **__: object) -> None:
        """Never called."""


@pytest.mark.parametrize(
    "loader",
    [make_closure(1), CallableLoader(), functools.partial(plain_loader, scale=torch.tensor(1)), CallableLoader],
    ids=["closure", "object", "partial of a tensor", "class"],
)
def test_loaders_that_cannot_be_told_apart_need_a_version(loader: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="plain function") as caught:
        loader_identity(loader)
    assert "loader_version" in caught.value.fix
    assert loader_identity(loader, "3")["version"] == "3"
