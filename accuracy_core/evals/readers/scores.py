"""From the dict in a results file to score rows: one per task or group, metric and filter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.readers.directions import direction
from accuracy_core.evals.readers.text_files import read_text
from accuracy_core.schemas import ScoreRow

_NO_FILTER = "none"


@dataclass
class ScoreSheet:
    """Rows, the group tree (group -> direct children) and what was odd."""

    rows: list[ScoreRow] = field(default_factory=list)
    groups: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def leaves(self, name: str) -> list[str]:
        """Tasks below a group, or the task itself. A cycle in the tree ends where it closes."""
        return list(dict.fromkeys(self._leaves(name, frozenset())))

    def _leaves(self, name: str, above: frozenset[str]) -> list[str]:
        if name in above:
            return []
        children = self.groups.get(name)
        return [leaf for child in children for leaf in self._leaves(child, above | {name})] if children else [name]


def read_scores(raw: Mapping[str, Any], *, filters_in_keys: bool) -> ScoreSheet:
    """`raw` is a results dict. Without `filters_in_keys` (0.3) a metric has no filter and gets "none".

    NaN and infinite scores stay as they are and are named; so is a text ("N/A") where a number is due.
    """
    sheet = ScoreSheet(groups=_groups(raw))
    if isinstance(raw.get("groups"), Mapping):  # 0.4.0 to 0.4.2 keep some group rows only here
        merged = {**raw["groups"], **_dict(raw.get("results"))}
    else:
        merged = _dict(raw.get("results"))
    unstated: list[str] = []
    texts: list[str] = []
    for task, row in merged.items():
        if isinstance(row, Mapping):
            _read_row(sheet, raw, task, row, filters_in_keys, unstated, texts)
    for name in dict.fromkeys(unstated):
        sheet.warnings.append(f"{name}: lower is better, assumed from its name")
    if texts:
        shown = ", ".join(texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
        sheet.warnings.append(f"a text where a number is due: {shown}")
    return sheet


def scores_of_file(path: Path) -> dict[str, float]:
    """`task/metric,filter` -> value of one results file of lm-eval 0.4 or later."""
    sheet = read_scores(load_results(path), filters_in_keys=True)
    return {row.key: row.value for row in sheet.rows}


def load_results(path: Path) -> dict[str, Any]:
    """The dict in a results file; NaN and Infinity literals are read as such.

    Raises ConfigurationError when it is not JSON or holds no results.
    """
    try:
        raw = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"results file {path} cannot be read: {error}", fix="rerun the evaluation") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("results"), dict):
        raise ConfigurationError(f"{path} holds no lm-eval results (no mapping 'results')")
    return raw


def _read_row(
    sheet: ScoreSheet,
    raw: Mapping[str, Any],
    task: str,
    row: Mapping[str, Any],
    filters_in_keys: bool,
    unstated: list[str],
    texts: list[str],
) -> None:
    is_group = bool(sheet.groups.get(task))
    before = len(sheet.rows)
    for key, value in row.items():
        split = _metric_and_filter(str(key), filters_in_keys)
        if split is None:
            continue
        metric, name = split
        number = _number(value)
        if metric.endswith("_stderr"):
            if number is None:
                texts.append(f"{key} of {task} is {value!r}")
            continue
        if number is None:
            if not filters_in_keys and not isinstance(value, str):
                continue
            texts.append(f"{key} of {task} is {value!r}")
            number = math.nan
        elif not math.isfinite(number):
            sheet.warnings.append(f"{task}/{metric},{name} is {_spell(number)}")
        higher, source = direction(raw, task, metric, sheet.leaves(task))
        if source == "name" and not higher:
            unstated.append(f"{metric} of {task}")
        sheet.rows.append(
            ScoreRow(
                key=f"{task}/{metric},{name}",
                task=task,
                metric=metric,
                filter=name,
                value=number,
                stderr=_stderr(row, metric, name, filters_in_keys),
                n=_n_samples(raw, task, row, sheet.leaves(task)),
                higher_is_better=higher,
                is_group=is_group,
            )
        )
    if is_group and len(sheet.rows) == before and any(not str(key).strip() for key in row):
        sheet.warnings.append(f"group {task} has no metric of its own")


def _metric_and_filter(key: str, filters_in_keys: bool) -> tuple[str, str] | None:
    """None for a key that is no metric: `alias`, `name`, `sample_len`, a blank."""
    metric, comma, name = key.partition(",")
    if filters_in_keys:
        return (metric, name) if comma and metric.strip() else None
    return (key, _NO_FILTER) if key.strip() and key not in ("alias", "name") else None


def _stderr(row: Mapping[str, Any], metric: str, name: str, filters_in_keys: bool) -> float:
    key = f"{metric}_stderr,{name}" if filters_in_keys else f"{metric}_stderr"
    number = _number(row.get(key))
    return math.nan if number is None else number


def _n_samples(raw: Mapping[str, Any], task: str, row: Mapping[str, Any], leaves: list[str]) -> int | None:
    counts = _dict(raw.get("n-samples"))
    found = [_dict(counts.get(leaf)).get("effective") for leaf in leaves]
    if found and all(isinstance(count, int) for count in found):
        return sum(count for count in found if isinstance(count, int))
    own = row.get("sample_len")
    return own if isinstance(own, int) else None


def _groups(raw: Mapping[str, Any]) -> dict[str, list[str]]:
    """`group_subtasks`; lm-eval lists plain tasks there too, with no children."""
    listed = _dict(raw.get("group_subtasks"))
    return {
        str(group): [str(child) for child in children]
        for group, children in listed.items()
        if isinstance(children, list) and children
    }


def _number(value: Any) -> float | None:
    if isinstance(value, bool | int | float):
        return float(value)
    item = getattr(value, "item", None)  # a numpy scalar in a dict that was never on disk
    if callable(item) and getattr(value, "ndim", None) == 0:
        found = item()
        return float(found) if isinstance(found, bool | int | float) else None
    return None


def _spell(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
