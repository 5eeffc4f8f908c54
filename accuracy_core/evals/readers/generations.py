"""The readers, one per generation of lm-eval's schema. Each says whether a run is its own, and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from accuracy_core.evals.readers.assemble import tables_from_dict, tables_from_files
from accuracy_core.evals.readers.locate import RunFiles
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.scores import read_scores


class Reader(Protocol):
    """Reads a run whose results dict is `raw`; `files` is None for a dict that was never on disk."""

    generation: str

    def reads(self, raw: Mapping[str, Any], files: RunFiles | None) -> bool: ...

    def read(self, raw: dict[str, Any], files: RunFiles | None) -> EvalResults: ...


class V03Reader:
    """0.3: metrics without a filter, no configs, no direction map, no samples."""

    generation = "0.3"

    def reads(self, raw: Mapping[str, Any], files: RunFiles | None) -> bool:
        rows = [row for row in raw["results"].values() if isinstance(row, Mapping)]
        return "configs" not in raw and not any("," in str(key) for row in rows for key in row)

    def read(self, raw: dict[str, Any], files: RunFiles | None) -> EvalResults:
        return EvalResults(read_scores(raw, filters_in_keys=False), {}, raw, self.generation)


class V04Reader:
    """0.4.3 and later: time stamps in the names, one JSON record per line."""

    generation = "0.4.3 or later"

    def reads(self, raw: Mapping[str, Any], files: RunFiles | None) -> bool:
        return files is not None and bool(files.stamp)

    def read(self, raw: dict[str, Any], files: RunFiles | None) -> EvalResults:
        sheet = read_scores(raw, filters_in_keys=True)
        tasks = list(raw["results"])
        tables = tables_from_files(raw, files.samples if files else [], tasks)
        return EvalResults(sheet, tables, raw, self.generation)


class V040Reader(V04Reader):
    """0.4.0 to 0.4.2: `results.json`, samples named by the model's arguments, each file one JSON array, no filter
    names.
    """

    generation = "0.4.0 to 0.4.2"

    def reads(self, raw: Mapping[str, Any], files: RunFiles | None) -> bool:
        return files is not None and not files.stamp


class InMemoryReader:
    """The dict of `simple_evaluate()`: samples inside, arguments as lists, numbers as numbers."""

    generation = "in memory"

    def reads(self, raw: Mapping[str, Any], files: RunFiles | None) -> bool:
        return files is None

    def read(self, raw: dict[str, Any], files: RunFiles | None) -> EvalResults:
        tables = tables_from_dict(raw)
        kept = {key: value for key, value in raw.items() if key != "samples"}
        return EvalResults(read_scores(raw, filters_in_keys=True), tables, kept, self.generation)


#: asked in this order
READERS: list[Reader] = [V03Reader(), InMemoryReader(), V04Reader(), V040Reader()]


def reader_for(raw: Mapping[str, Any], files: RunFiles | None) -> Reader:
    """The first reader that recognises the run; V040Reader takes every other run on disk."""
    return next(reader for reader in READERS if reader.reads(raw, files))
