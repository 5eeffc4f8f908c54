"""Thresholds: how they are written, which score they mean, and whether it is met."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from accuracy_core.errors import ConfigurationError

Kind = Literal["bound", "mean_std", "fraction_of_reference"]
_FORMS = 'a number, {"mean": m, "std": s, "n_sigma": 2} or {"min_of_reference": 0.98}'
_DEFAULT_SIGMAS = 2.0
#: metrics of lm-eval that lie between 0 and 1 in every task that has them
ALWAYS_PROPORTIONS = frozenset({"acc", "acc_norm", "acc_mutual_info", "acc_bytes", "acc_all", "exact_match"})
#: and those that do in tasks whose files list them: tasks in Python (SQuAD 2, SCROLLS) give percentages the same names
PROPORTIONS_OF_FILES = ALWAYS_PROPORTIONS | {"f1", "em"}


@dataclass(frozen=True)
class Rule:
    """`bound`: the worst value that passes. `mean_std`: mean ± n_sigma·std, one-sided.

    Or a fraction of the reference.
    """

    kind: Kind
    value: float = math.nan
    mean: float = math.nan
    std: float = math.nan
    n_sigma: float = _DEFAULT_SIGMAS

    def limit(self, higher_is_better: bool, reference: float | None) -> float:
        """The number a score is held against; NaN when there is no reference to take a fraction of.

        Where lower is better, a fraction f of the reference r means at most r / f.
        """
        if self.kind == "bound":
            return self.value
        if self.kind == "mean_std":
            slack = self.n_sigma * self.std
            return self.mean - slack if higher_is_better else self.mean + slack
        if reference is None:
            return math.nan
        return reference * self.value if higher_is_better else reference / self.value


def parse_rule(key: str, value: Any) -> Rule:
    """Raises ConfigurationError for anything but the three forms with finite numbers, and for numbers that no score of
    the metric in `key` can have.
    """
    rule = _parsed(key, value)
    require_possible(key, rule, ALWAYS_PROPORTIONS)
    return rule


def _parsed(key: str, value: Any) -> Rule:
    if isinstance(value, Mapping):
        fields = dict(value)
        if set(fields) == {"min_of_reference"}:
            fraction = _number(key, fields["min_of_reference"])
            if fraction <= 0:
                raise ConfigurationError(f"threshold {key!r}: min_of_reference must be positive, got {fraction}")
            return Rule("fraction_of_reference", value=fraction)
        if {"mean", "std"} <= set(fields) <= {"mean", "std", "n_sigma"}:
            rule = Rule(
                "mean_std",
                mean=_number(key, fields["mean"]),
                std=_number(key, fields["std"]),
                n_sigma=_number(key, fields.get("n_sigma", _DEFAULT_SIGMAS)),
            )
            if rule.std < 0 or rule.n_sigma < 0:
                raise ConfigurationError(f"threshold {key!r}: std and n_sigma must not be negative")
            return rule
        raise ConfigurationError(f"threshold {key!r} has the fields {sorted(map(str, fields))}", fix=f"use {_FORMS}")
    return Rule("bound", value=_number(key, value))


def split_key(given: str) -> tuple[str | None, str]:
    """`task/metric,filter` -> (task, `metric,filter`). The task ends at the last `/`; without one there is no task."""
    task, slash, key = given.rpartition("/")
    return (task, key) if slash else (None, key)


def require_possible(key: str, rule: Rule, proportions: Collection[str]) -> None:
    """Raise ConfigurationError when the metric in `key` is one of `proportions` and `rule` has a number beyond 0 to 1.

    Such a threshold would never be met, or always. A fraction of the reference may be more than the whole.
    """
    metric = split_key(key)[1].partition(",")[0]
    if metric not in proportions or rule.kind == "fraction_of_reference":
        return
    numbers = {"": rule.value} if rule.kind == "bound" else {"mean ": rule.mean, "std ": rule.std}
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            percent = f"it looks like a percentage: write {number / 100:g}"
            raise ConfigurationError(
                f"threshold {key!r}: {name}{number:g} is impossible, {metric} lies between 0 and 1",
                fix=percent if 1 < number <= 100 else "use a number from 0 to 1",
            )
    limit = rule.limit(True, None)  # a proportion that counts hits is the better the higher
    if limit < 0:
        raise ConfigurationError(
            f"threshold {key!r}: mean - n_sigma * std is {limit:g}, which every {metric} meets",
            fix="use a smaller n_sigma, or measure the standard deviation on more documents",
        )


def meets(value: float, limit: float, higher_is_better: bool) -> bool:
    """Equal passes. Non-finite scores and limits never do."""
    if not math.isfinite(value) or not math.isfinite(limit):
        return False
    return value >= limit if higher_is_better else value <= limit


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"threshold {key!r} is {value!r}", fix=f"use {_FORMS}, with finite numbers")
    return float(value)
