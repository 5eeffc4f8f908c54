"""Decoding sample records into columns, a batch at a time, without building what is not needed.

msgspec checks a whole line as JSON but makes objects only of the named fields; on lines with few-shot prompts it is 6
times faster than `json.loads`. A batch that holds anything else than plain numbers under the expected metrics (NaN
literals, lists, another set of metrics, a broken line) is taken record by record instead.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Literal

import msgspec

from accuracy_core.evals.readers.columns import Columns, MetricColumn
from accuracy_core.evals.readers.record_ranges import Batch, Record
from accuracy_core.evals.readers.requests_of import sent_request
from accuracy_core.evals.readers.responses import is_empty, is_truncated, length_limit, response_texts

_BLANK_TEXT = re.compile(rb'"(?:\s|\\[ntrf])*"')
_JUDGED = array("b", [1])
_DOC_ID, _FILTER, _RESPS = attrgetter("doc_id"), attrgetter("filter"), attrgetter("resps")


class RecordDecoder:
    """Adds the records of one samples file to `columns`. `on_broken(record, error)` hears of those that are none."""

    def __init__(self, columns: Columns, file: int, on_broken: Callable[[Record, Exception], None]) -> None:
        self._columns, self._file, self._on_broken = columns, file, on_broken
        self._listed: list[str] = []
        self._decode: Callable[[memoryview], list[Any]] | None = None
        self._expected: list[tuple[str, MetricColumn]] = []
        self._limit = sys.maxsize

    def add_all(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            if self._decode is None or not self._add_batch(batch):
                for record in batch.records():
                    self._add_one(record)

    def _add_batch(self, batch: Batch) -> bool:
        """False, with nothing added, when the batch has to be taken record by record."""
        assert self._decode is not None
        columns, count = self._columns, len(batch.ends)
        try:
            lines = self._decode(batch.view)
            if len(lines) != count:  # a blank line, or two records in one
                return False
            if not batch.is_ascii():
                bytes(batch.view).decode()  # msgspec does not look into the texts that it skips
            doc_ids = array("q", list(map(_DOC_ID, lines)))
            values = [array("d", list(map(attrgetter(name), lines))) for name, _ in self._expected]
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, OverflowError):
            return False
        for (_, column), numbers in zip(self._expected, values, strict=True):
            column.values.extend(numbers)
            column.judged.extend(_JUDGED * count)
        for metric, column in columns.metrics.items():
            if metric not in self._listed:
                for _ in range(count):
                    column.add_missing()
        empty, truncated = self._flags(lines)
        columns.doc_id.extend(doc_ids)
        columns.filter_code.extend(array("i", list(map(columns.codes.__getitem__, map(_FILTER, lines)))))
        columns.file.extend(array("i", [self._file]) * count)
        columns.offset.extend(array("q", batch.offsets()))
        columns.length.extend(array("q", batch.lengths()))
        columns.empty.extend(empty)
        columns.truncated.extend(truncated)
        return True

    def _flags(self, lines: list[Any]) -> tuple[array[int], array[int]]:
        """(empty, truncated) of each; most responses are cleared without being decoded."""
        responses = list(map(bytes, map(_RESPS, lines)))
        empty, truncated = array("b", bytes(len(lines))), array("b", bytes(len(lines)))
        if _BLANK_TEXT.search(b"\n".join(responses)):
            empty = array("b", [_BLANK_TEXT.search(data) is not None and is_empty(_texts(data)) for data in responses])
        gaps = self._limit - 1  # between so many words: a space, an escape, or something beyond ASCII
        for row, data in enumerate(responses):
            if len(data) > 2 * gaps and (
                data.count(b" ") >= gaps or data.count(b" ") + data.count(b"\\") >= gaps or not data.isascii()
            ):
                kwargs = sent_request(json.loads(bytes(lines[row].arguments))).gen_kwargs
                truncated[row] = is_truncated(_texts(data), kwargs)
        return empty, truncated

    def _add_one(self, record: Record) -> None:
        """Any record; takes NaN and Infinity literals."""
        try:
            found = json.loads(record.data.decode())
            if not isinstance(found, dict):
                raise ValueError(f"a {type(found).__name__} where a record is due")
        except (ValueError, RecursionError) as error:
            self._on_broken(record, error)
            return
        self._columns.add_record(found, (self._file, record.offset, len(record.data)), record_flags(found))
        self._learn(found)

    def _learn(self, record: dict[str, Any]) -> None:
        """Expect this record's metrics in the next ones."""
        listed = record.get("metrics")
        if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
            return
        if self._decode is not None and listed == self._listed:
            return
        self._listed = listed
        same_metrics: Any = tuple[tuple(Literal[name] for name in listed)]  # type: ignore[misc]
        fields: list[Any] = [
            ("metrics", same_metrics), ("doc_id", Any, None), ("filter", str | None, None),
            ("resps", msgspec.Raw, msgspec.Raw(b"[]")),
            ("arguments", msgspec.Raw, msgspec.Raw(b"[]")),
        ]  # fmt: skip
        names = {f"m{index}": metric for index, metric in enumerate(listed)}
        fields += [(name, Any, None) for name in names]
        self._decode = msgspec.json.Decoder(
            msgspec.defstruct("SampleLine", fields, rename=names, gc=False)
        ).decode_lines
        self._expected = [(name, self._columns.column(metric)) for name, metric in names.items()]
        # one task has one set of generation arguments
        self._limit = length_limit(sent_request(record.get("arguments")).gen_kwargs) or sys.maxsize


def record_flags(record: dict[str, Any]) -> tuple[bool, bool]:
    """(empty, truncated) of a decoded record."""
    texts = response_texts(record.get("resps"))
    if not texts:
        return False, False
    return is_empty(texts), is_truncated(texts, sent_request(record.get("arguments")).gen_kwargs)


def _texts(data: bytes) -> list[str]:
    return response_texts(json.loads(data))
