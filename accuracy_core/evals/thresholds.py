"""Thresholds: how they are written, which score they mean, and whether it is met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from accuracy_core.errors import ConfigurationError

Kind = Literal["bound", "mean_std", "fraction_of_reference"]
_FORMS = 'a number, {"mean": m, "std": s, "n_sigma": 2} or {"min_of_reference": 0.98}'
_DEFAULT_SIGMAS = 2.0


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
    """Raises ConfigurationError for anything but the three forms with finite numbers."""
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


def meets(value: float, limit: float, higher_is_better: bool) -> bool:
    """Equal passes. Non-finite scores and limits never do."""
    if not math.isfinite(value) or not math.isfinite(limit):
        return False
    return value >= limit if higher_is_better else value <= limit


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"threshold {key!r} is {value!r}", fix=f"use {_FORMS}, with finite numbers")
    return float(value)
