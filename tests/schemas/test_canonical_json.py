"""Canonical JSON: one text per value, and nothing that JSON cannot say."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accuracy_core.schemas import canonical_json, fingerprint

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=6))
def test_order_of_keys_does_not_matter_and_text_is_ascii(value: dict[str, Any]) -> None:
    text = canonical_json(value)
    assert text == canonical_json(dict(reversed(value.items())))
    assert text.isascii()


def test_form_is_pinned() -> None:
    """A change of the form would change every key on every disk."""
    assert canonical_json({"b": [1, 1.5, True, None], "a": "é\n"}) == '{"a":"\\u00e9\\n","b":[1,1.5,true,null]}'
    assert fingerprint({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


def test_values_that_look_alike_stay_apart() -> None:
    texts = {canonical_json(value) for value in (1, 1.0, True, "1", [1], -0.0, 0.0)}
    assert len(texts) == 7


def test_text_is_not_unicode_normalised() -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    assert fingerprint([composed]) != fingerprint([decomposed])
    assert canonical_json("\ud800") == '"\\ud800"'  # a lone surrogate has a key, too


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        {1: "a"},
        {"a": {2: "b"}},
        {1, 2},
        b"bytes",
        torch.tensor(1),
        pytest.param(object(), id="object"),
        [1, {"x": float("-inf")}],
    ],
    ids=repr,
)
def test_everything_else_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical_json(value)


def test_numpy_scalars_are_refused() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float64(1.5), numpy.int64(1), numpy.array([1])):
        with pytest.raises(TypeError, match="plain JSON types"):
            canonical_json({"a": value})
