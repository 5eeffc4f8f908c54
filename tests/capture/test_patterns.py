"""Module patterns."""

from __future__ import annotations

import pytest

from accuracy_core.capture.patterns import select_taps
from accuracy_core.errors import ConfigurationError

_TAPS = [
    "model.embed_tokens", "model.layers.0.mlp", "model.layers.0.mlp.act", "model.layers.0", "model.layers.1.mlp",
    "model.layers.1", "model.layers.12", "lm_head",
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("model.layers.0-1", _TAPS[1:6]),
        ("model.layers.0", _TAPS[1:4]),
        ("model.layers.1", ["model.layers.1.mlp", "model.layers.1"]),
        ("model.layers.0-12.mlp", ["model.layers.0.mlp", "model.layers.0.mlp.act", "model.layers.1.mlp"]),
        ("lm_head", ["lm_head"]),
        (r"model\.layers\.\d+", ["model.layers.0", "model.layers.1", "model.layers.12"]),
        (r".*\.act", ["model.layers.0.mlp.act"]),
    ],
)
def test_documented_patterns(pattern: str, expected: list[str]) -> None:
    assert select_taps([pattern], _TAPS) == expected


def test_no_pattern_is_everything_and_several_keep_the_order() -> None:
    assert select_taps([], _TAPS) == _TAPS
    assert select_taps(["lm_head", "model.embed_tokens"], _TAPS) == ["model.embed_tokens", "lm_head"]


@pytest.mark.parametrize("pattern", ["model.layers.2-9", "model.layer.0", "embed", "mlp"])
def test_a_pattern_that_matches_nothing_names_near_ones(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="matches nothing") as caught:
        select_taps(["lm_head", pattern], _TAPS)
    assert "model." in caught.value.fix


@pytest.mark.parametrize(("pattern", "text"), [("model.layers.3-1", "backwards"), ("model.(", "regular expression")])
def test_a_pattern_that_cannot_be_is_refused(pattern: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        select_taps([pattern], _TAPS)
