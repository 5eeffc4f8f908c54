"""The samples of one task: a pandas table of numbers, and each full record on demand."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from accuracy_core.evals.readers.columns import Columns
from accuracy_core.evals.readers.fast_decode import RecordDecoder, record_flags
from accuracy_core.evals.readers.record_ranges import Record, batches
from accuracy_core.evals.readers.text_files import is_utf8, write_utf8_copy

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 5


class RecordSource(Protocol):
    """Where full records come from."""

    def load(self, file: int, offset: int, length: int) -> dict[str, Any]: ...


@dataclass(frozen=True)
class FileSource:
    """`scratch` holds UTF-8 copies of files in other encodings as long as the source lives."""

    paths: list[Path]
    scratch: tempfile.TemporaryDirectory[str] | None = None

    def load(self, file: int, offset: int, length: int) -> dict[str, Any]:
        with self.paths[file].open("rb") as stream:
            stream.seek(offset)
            record: dict[str, Any] = json.loads(stream.read(length))
        return record


@dataclass(frozen=True)
class MemorySource:
    items: list[dict[str, Any]]

    def load(self, file: int, offset: int, length: int) -> dict[str, Any]:
        return self.items[offset]


@dataclass
class SampleTable:
    """`frame` has one row per record, `odd` says per metric what its values are where they cannot be judged.

    Columns of `frame`: doc_id (int64), filter (categorical), empty, truncated (bool), file, offset, length (where the
    record is), and per metric `value:<metric>` (float64) and `judged:<metric>` (bool: it says how right the sample
    is).
    """

    task: str
    frame: pd.DataFrame
    metrics: list[str]
    odd: dict[str, dict[str, int]]
    source: RecordSource
    warnings: list[str] = field(default_factory=list)
    unknown_fields: list[str] = field(default_factory=list)

    def record(self, row: int) -> dict[str, Any]:
        """The whole record of a row, read again from where it is."""
        file, offset, length = (int(self.frame[name].iloc[row]) for name in ("file", "offset", "length"))
        return self.source.load(file, offset, length)

    def n_records(self) -> dict[str, int]:
        """Records per filter."""
        counts = self.frame["filter"].value_counts(sort=False)
        return {str(name): int(count) for name, count in counts.items() if count}

    def values(self, metric: str, filter_name: str | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, values, judged) of a metric, under one filter or all."""
        frame = self.frame
        keep = np.ones(len(frame), bool) if filter_name is None else (frame["filter"] == filter_name).to_numpy()
        rows = np.flatnonzero(keep)
        return rows, frame[f"value:{metric}"].to_numpy()[rows], frame[f"judged:{metric}"].to_numpy()[rows]


def read_sample_files(task: str, paths: list[Path], filter_order: list[str]) -> SampleTable:
    """Read samples files line by line. A line that is no record counts for nothing but its warning.

    `filter_order` names the filters for records that carry none (before 0.4.7): they come in blocks in that order.
    """
    columns = Columns()
    warnings: list[str] = []
    source = _utf8_source(paths)
    for index, (path, readable) in enumerate(zip(paths, source.paths, strict=True)):

        def name_it(record: Record, error: Exception, path: Path = path) -> None:
            what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
            warnings.append(f"line {record.line} of {path.stem} is not {what}")

        RecordDecoder(columns, index, name_it).add_all(batches(readable))
    return _table(task, columns, source, filter_order, warnings)


def _utf8_source(paths: list[Path]) -> FileSource:
    if all(is_utf8(path) for path in paths):
        return FileSource(paths)
    scratch = tempfile.TemporaryDirectory(prefix="assay-samples-")
    readable = []
    for index, path in enumerate(paths):
        copy = Path(scratch.name) / f"{index}.jsonl"
        write_utf8_copy(path, copy)
        readable.append(copy)
    return FileSource(readable, scratch)


def read_sample_dicts(task: str, items: Iterable[Any], filter_order: list[str]) -> SampleTable:
    """Samples of a results dict that was never on disk."""
    columns = Columns()
    warnings: list[str] = []
    kept: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            warnings.append(f"sample {number} of {task} is a {type(item).__name__}, no record")
            continue
        record = dict(item)
        columns.add_record(record, (0, len(kept), 0), record_flags(record))
        kept.append(record)
    return _table(task, columns, MemorySource(kept), filter_order, warnings)


def _table(
    task: str, columns: Columns, source: RecordSource, filter_order: list[str], warnings: list[str]
) -> SampleTable:
    import pandas as pd

    codes = np.frombuffer(columns.filter_code, np.int32).copy() if len(columns) else np.zeros(0, np.int32)
    if (codes < 0).any():
        codes = _blocks(columns, codes, filter_order or ["none"])
        if len(filter_order) > 1:
            warnings.append(f"the samples of {task} carry no filter name: taken from the order of filter_list")
    data: dict[str, Any] = {
        "doc_id": np.array(columns.doc_id, np.int64),
        "filter": pd.Categorical.from_codes(codes, categories=pd.Index(columns.filters, dtype=object)),
        "empty": np.array(columns.empty, bool),
        "truncated": np.array(columns.truncated, bool),
        "file": np.array(columns.file, np.int32),
        "offset": np.array(columns.offset, np.int64),
        "length": np.array(columns.length, np.int64),
    }
    for metric, column in columns.metrics.items():
        data[f"value:{metric}"] = np.array(column.values, np.float64)
        data[f"judged:{metric}"] = np.array(column.judged, bool)
    odd = {metric: column.odd for metric, column in columns.metrics.items() if column.odd}
    table = SampleTable(task, pd.DataFrame(data), list(columns.metrics), odd, source, warnings)
    table.unknown_fields = sorted(columns.unknown_fields)
    warnings += _duplicates(task, table.frame)
    return table


def _blocks(columns: Columns, codes: np.ndarray, order: list[str]) -> np.ndarray:
    """Records without a filter come in blocks, one filter each, every block running through the documents."""
    names = [columns.codes[name] for name in order]
    block = 0
    seen: set[int] = set()
    for row in np.flatnonzero(codes < 0):
        doc = columns.doc_id[row]
        if doc in seen and block < len(names) - 1:
            block, seen = block + 1, set()
        seen.add(doc)
        codes[row] = names[block]
    return codes


def _duplicates(task: str, frame: pd.DataFrame) -> list[str]:
    repeated = frame[frame.duplicated(["doc_id", "filter"])]
    found = Counter(zip(repeated["filter"].astype(str), repeated["doc_id"], strict=True))
    texts = [
        f"doc_id {doc} of {task} occurs {'twice' if count == 1 else f'{count + 1} times'} under filter {name}"
        for (name, doc), count in list(found.items())[:_NAMED]
    ]
    return texts + ([f"{len(found) - _NAMED} more documents of {task} occur again"] if len(found) > _NAMED else [])


def empty_and_cut(task: str, frame: pd.DataFrame) -> list[str]:
    """Warnings that name documents whose response is empty or was cut."""
    texts = []
    for column, what in (("empty", "empty response"), ("truncated", "response truncated at its length limit")):
        docs = frame.loc[frame[column], "doc_id"].unique()
        texts += [f"doc_id {doc} of {task}: {what}" for doc in docs[:_NAMED]]
        if len(docs) > _NAMED:
            texts.append(f"{len(docs)} documents of {task} in all: {what}")
    return texts
