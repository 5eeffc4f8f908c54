"""Whether a metric is better when higher: lm-eval's map, else the task's metric_list, else the metric's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

_LOWER_IS_BETTER = frozenset({"ppl", "bits_per_byte", "brier_score", "mae", "rmse", "wer", "cer", "ter"})
Source = Literal["map", "metric_list", "name"]


def lower_by_name(metric: str) -> bool:
    """Perplexities, bits per byte, Brier score and error rates, by their usual names."""
    name = metric.lower()
    return name in _LOWER_IS_BETTER or name.endswith("perplexity")


def direction(raw: Mapping[str, Any], task: str, metric: str, leaves: list[str]) -> tuple[bool, Source]:
    """(higher is better, where that is said) for a task or group. `leaves` are the tasks below a group, else [task].

    A group whose leaves disagree falls back to the name.
    """
    declared = _mapping(_mapping(raw.get("higher_is_better")).get(task)).get(metric)
    if isinstance(declared, bool):
        return declared, "map"
    said = {_declared(raw, leaf, metric) for leaf in leaves} - {None}
    if len(said) == 1:
        return bool(said.pop()), "metric_list"
    return not lower_by_name(metric), "name"


def _declared(raw: Mapping[str, Any], task: str, metric: str) -> bool | None:
    listed = _mapping(_mapping(raw.get("higher_is_better")).get(task)).get(metric)
    if isinstance(listed, bool):
        return listed
    for item in metric_list(raw, task):
        if item.get("metric") == metric and isinstance(item.get("higher_is_better"), bool):
            return bool(item["higher_is_better"])
    return None


def metric_list(raw: Mapping[str, Any], task: str) -> list[Mapping[str, Any]]:
    """The task's `metric_list` in the run's configs, [] when there is none."""
    listed = _mapping(_mapping(raw.get("configs")).get(task)).get("metric_list")
    return [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
