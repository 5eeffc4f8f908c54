"""Decoding sample lines into columns without building what is not needed.

msgspec checks a whole line as JSON but makes objects only of the named fields; it is 6 times faster than `json.loads`
on lines with few-shot prompts. What it refuses (NaN literals, other metrics than the line before) goes the general
way.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import msgspec

from accuracy_core.evals.readers.columns import Columns, MetricColumn
from accuracy_core.evals.readers.requests_of import sent_request
from accuracy_core.evals.readers.responses import is_empty, is_truncated, length_limit, response_texts

_BLANK_TEXT = re.compile(rb'"(?:\s|\\[ntrf])*"')


class LineDecoder:
    """Adds lines of one samples file to `columns`."""

    def __init__(self, columns: Columns, file: int) -> None:
        self._columns, self._file = columns, file
        self._fast: msgspec.json.Decoder[Any] | None = None
        self._ordered: list[tuple[str, MetricColumn]] = []
        self._rest: list[MetricColumn] = []
        self._shortest_cut = 0
        self._listed: list[str] = []

    def add(self, data: bytes, offset: int) -> None:
        """Add one record. Raises ValueError for a line that is not JSON, or no object."""
        if self._fast is not None:
            try:
                record = self._fast.decode(data)
            except msgspec.MsgspecError:
                record = None
            if record is not None and record.metrics == self._listed:
                self._add_fast(record, len(data), offset)
                return
        self._add_any(data, offset)

    def _add_fast(self, record: Any, length: int, offset: int) -> None:
        for name, column in self._ordered:
            value = getattr(record, name)
            if value is msgspec.UNSET:
                column.add_missing()
            else:
                column.add(value)
        for column in self._rest:
            column.add_missing()
        resps = bytes(record.resps)
        if len(resps) >= self._shortest_cut or _BLANK_TEXT.search(resps):
            flags = self._flags(json.loads(resps), bytes(record.arguments))
        else:
            flags = (False, False)
        self._columns.add_place(record.doc_id, record.filter, (self._file, offset, length), flags, record.doc_hash)

    def _flags(self, resps: Any, arguments: bytes) -> tuple[bool, bool]:
        texts = response_texts(resps)
        empty = is_empty(texts)
        if empty or not texts:
            return empty, False
        return False, is_truncated(texts, sent_request(json.loads(arguments)).gen_kwargs)

    def _add_any(self, data: bytes, offset: int) -> None:
        record = json.loads(data)  # takes NaN and Infinity literals
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__} where a record is due")
        self._columns.add_record(record, (self._file, offset, len(data)), record_flags(record))
        self._learn(record)

    def _learn(self, record: dict[str, Any]) -> None:
        """Take this record's metrics as those of the next ones."""
        listed = record.get("metrics")
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            return
        if self._fast is not None and listed == self._listed:
            return
        self._listed = listed
        fields: list[tuple[str, Any, Any]] = [
            ("doc_id", Any, None), ("filter", Any, None), ("metrics", Any, None), ("doc_hash", Any, None),
            ("resps", msgspec.Raw, msgspec.Raw(b"[]")), ("arguments", msgspec.Raw, msgspec.Raw(b"[]")),
        ]  # fmt: skip
        names = {f"m{index}": metric for index, metric in enumerate(listed)}
        fields += [(name, Any, msgspec.UNSET) for name in names]
        kind = msgspec.defstruct("SampleLine", fields, rename=names)
        self._fast = msgspec.json.Decoder(kind)
        self._ordered = [(name, self._columns.column(metric)) for name, metric in names.items()]
        self._rest = [column for metric, column in self._columns.metrics.items() if metric not in listed]
        # one task, one set of generation arguments: a response with fewer bytes cannot have reached the limit
        limit = length_limit(sent_request(record.get("arguments")).gen_kwargs)
        self._shortest_cut = 2 * limit if limit else sys.maxsize


def record_flags(record: dict[str, Any]) -> tuple[bool, bool]:
    """(empty, truncated) of a decoded record."""
    texts = response_texts(record.get("resps"))
    if not texts:
        return False, False
    return is_empty(texts), is_truncated(texts, sent_request(record.get("arguments")).gen_kwargs)
