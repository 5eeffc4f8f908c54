"""Columns of a samples table, filled record by record: numbers only, so that memory stays flat over huge files."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

STANDARD_FIELDS = frozenset({
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash",
})  # fmt: skip


class MetricColumn:
    """Values of one metric: a float per record, and whether it can be judged.

    A list of booleans becomes its mean (all true: 1.0). `odd` counts why values cannot be judged.
    """

    def __init__(self, length: int = 0) -> None:
        self.values = array("d", [math.nan]) * length
        self.judged = array("b", [0]) * length
        self.odd: dict[str, int] = {}

    def add(self, value: Any) -> None:
        if type(value) is float:
            self.values.append(value)
            self.judged.append(1)
            return
        number, problem = judge_value(value)
        self.values.append(number)
        self.judged.append(not problem)
        if problem:
            self.odd[problem] = self.odd.get(problem, 0) + 1

    def add_missing(self) -> None:
        self.values.append(math.nan)
        self.judged.append(0)


def judge_value(value: Any) -> tuple[float, str]:
    """(number, '') for a value that says how right one sample is, else (NaN, what it is instead)."""
    if isinstance(value, bool | int | float):
        return float(value), ""
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, Sequence):
        if all(isinstance(item, bool) for item in value):
            return (sum(value) / len(value) if value else 1.0), ""
        if all(isinstance(item, int | float) for item in value):
            return math.nan, "a pair" if len(value) == 2 else "a list of numbers"
        if all(isinstance(item, str | list) for item in value):
            numeric = sum(not _from_text(item)[1] for item in value if isinstance(item, str))
            return math.nan, "a list of numbers" if numeric == len(value) else "a list of texts"
        return math.nan, "a pair" if len(value) == 2 else "a list"
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return judge_value(item())
    return math.nan, "missing" if value is None else f"a {type(value).__name__}"


def _from_text(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return math.nan, f"the text {value[:20]!r}"


class _Codes(dict[Any, int]):
    """Name of a filter -> its index in `names`, given at the first look-up; None -> -1."""

    def __init__(self, names: list[str]) -> None:
        super().__init__({None: -1})
        self._names = names

    def __missing__(self, name: Any) -> int:
        text = str(name)
        if text not in self._names:
            self._names.append(text)
        self[name] = self._names.index(text)
        return self[name]


class Columns:
    """Grows by one record at a time."""

    def __init__(self) -> None:
        self.doc_id = array("q")
        self.filter_code = array("i")  # index into `filters`; -1 where the record names none
        self.offset = array("q")
        self.length = array("q")
        self.file = array("i")
        self.empty = array("b")
        self.truncated = array("b")
        self.metrics: dict[str, MetricColumn] = {}
        self.filters: list[str] = []
        self.unknown_fields: set[str] = set()
        self.codes = _Codes(self.filters)

    def __len__(self) -> int:
        return len(self.doc_id)

    def column(self, metric: str) -> MetricColumn:
        """The column of `metric`; one that appears late is missing in the records before."""
        if metric not in self.metrics:
            self.metrics[metric] = MetricColumn(len(self))
        return self.metrics[metric]

    def add_record(self, record: Mapping[str, Any], place: tuple[int, int, int], flags: tuple[bool, bool]) -> None:
        """Any decoded record. `place`: (file, offset, length); `flags`: (empty, truncated)."""
        listed = record.get("metrics")
        if isinstance(listed, list):
            names = [str(name) for name in listed]
            self.unknown_fields.update(set(record) - STANDARD_FIELDS - set(names))
        else:
            names = [name for name in record if name not in STANDARD_FIELDS]
        for name in names:
            self.column(name)
        for name, column in self.metrics.items():
            if name in names and name in record:
                column.add(record[name])
            else:
                column.add_missing()
        doc_id = record.get("doc_id")
        self.doc_id.append(doc_id if type(doc_id) is int else _doc_id(doc_id, len(self)))
        named = record.get("filter")
        self.filter_code.append(self.codes[named if named is None or isinstance(named, str) else str(named)])
        self.file.append(place[0])
        self.offset.append(place[1])
        self.length.append(place[2])
        self.empty.append(flags[0])
        self.truncated.append(flags[1])


def _doc_id(value: Any, position: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return position
