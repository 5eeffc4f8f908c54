from __future__ import annotations

import math

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.judging import judge
from accuracy_core.evals.readers.scores import ScoreSheet
from accuracy_core.evals.thresholds import meets, parse_rule, split_key
from accuracy_core.schemas import ScoreRow


def row(key: str, value: float, *, higher: bool = True, n: int | None = 100) -> ScoreRow:
    task, _, rest = key.rpartition("/")
    metric, _, name = rest.partition(",")
    return ScoreRow(key=key, task=task, metric=metric, filter=name, value=value, n=n, higher_is_better=higher)


SHEET = ScoreSheet(rows=[row("t/acc,none", 0.8), row("t/ppl,none", 12.0, higher=False), row("u/f1,none", math.nan)])


@pytest.mark.parametrize(
    ("key", "value", "passed", "bound"),
    [
        ("t/acc,none", 0.8, True, 0.8),
        ("acc,none", 0.8000001, False, 0.8000001),
        ("t/acc,none", 0, True, 0.0),
        ("t/acc,none", {"mean": 0.84, "std": 0.02, "n_sigma": 2}, True, 0.80),
        ("t/acc,none", {"mean": 0.86, "std": 0.02}, False, 0.82),
        ("t/ppl,none", 12, True, 12.0),
        ("t/ppl,none", 11.9, False, 11.9),
        ("t/ppl,none", {"mean": 11.0, "std": 0.5, "n_sigma": 2}, True, 12.0),
        ("u/f1,none", 0.0, False, 0.0),
    ],
)
def test_rules(key: str, value: object, passed: bool, bound: float) -> None:
    [result], _ = judge({key: value}, SHEET, None)
    assert result.passed is passed
    assert result.bound == pytest.approx(bound)
    assert bool(result.reason) is not passed


def test_fraction_of_reference() -> None:
    reference = ScoreSheet(rows=[row("t/acc,none", 0.9), row("t/ppl,none", 11.0, higher=False)])
    results, _ = judge({"acc,none": {"min_of_reference": 0.9}, "ppl,none": {"min_of_reference": 0.9}}, SHEET, reference)
    assert [item.passed for item in results] == [False, True]
    assert [item.bound for item in results] == pytest.approx([0.81, 11 / 0.9])
    assert {item.rule for item in results} == {"fraction_of_reference"}
    [missing], _ = judge({"u/f1,none": {"min_of_reference": 0.5}}, SHEET, reference)
    assert not missing.passed
    assert "reference has no score" in missing.reason
    with pytest.raises(ConfigurationError, match="no reference results"):
        judge({"acc,none": {"min_of_reference": 0.9}}, SHEET, None)


def test_missing_score_lists_those_that_exist() -> None:
    [result], rows = judge({"t/f2,none": 0.1}, SHEET, None)
    assert not result.passed
    assert rows == []
    assert all(item.key in result.reason for item in SHEET.rows)


@pytest.mark.parametrize(
    "value",
    ["0.5", None, True, math.nan, math.inf, [0.5], {}, {"min": 0.5}, {"mean": 0.5}, {"mean": 0.5, "std": -1},
     {"min_of_reference": 0}, {"min_of_reference": "x"}, {"mean": 0.5, "std": 0.1, "sigma": 2}],
)  # fmt: skip
def test_malformed(value: object) -> None:
    with pytest.raises(ConfigurationError):
        parse_rule("t/acc,none", value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("gsm8k/exact_match,strict-match", 41, r"'gsm8k/exact_match,strict-match': 41 .*\n.*percentage: write 0\.41$"),
        ("acc,none", 1.001, "acc lies between 0 and 1"),
        ("t/acc_norm,none", -0.1, r"-0\.1 is impossible.*\n.*use a number from 0 to 1"),
        ("acc,none", 4100, "use a number from 0 to 1"),
        ("acc,none", {"mean": 84, "std": 0.02}, "mean 84 is impossible"),
        ("acc,none", {"mean": 0.84, "std": 2}, r"std 2 is impossible.*\n.*write 0\.02$"),
        ("acc,none", {"mean": 0.4, "std": 0.3}, r"is -0\.2, which every acc meets"),
    ],
)  # fmt: skip
def test_what_no_proportion_can_be_is_refused(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_rule(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("acc,none", 0), ("acc,none", 1), ("t/bleu,none", 41), ("word_perplexity,none", 12.5), ("squadv2/f1,none", 80),
     ("acc/bleu,none", 41), ("acc,none", {"min_of_reference": 1.02}), ("acc,none", {"mean": 0.5, "std": 0.25}),
     ("t/bleu,none", {"mean": 4, "std": 3})],
)  # fmt: skip
def test_what_some_score_can_be_is_not(key: str, value: object) -> None:
    parse_rule(key, value)


def test_non_finite_never_passes() -> None:
    assert not meets(math.nan, 0.0, True)
    assert not meets(math.inf, 0.0, True)
    assert not meets(-math.inf, 1e9, False)
    assert not meets(0.5, math.nan, True)


def test_split_key() -> None:
    assert split_key("acc,none") == (None, "acc,none")
    assert split_key("a/b,c/acc,none") == ("a/b,c", "acc,none")


def test_detectable_drop_only_for_proportions() -> None:
    results, _ = judge({"acc,none": 0.1, "ppl,none": 99}, SHEET, None)
    assert results[0].smallest_detectable_drop == pytest.approx(
        2.4865 * math.sqrt(2 * 0.794118 * 0.205882 / 100), rel=1e-3
    )
    assert math.isnan(results[1].smallest_detectable_drop)
