from __future__ import annotations

import json
from pathlib import Path

import pytest

from accuracy_core.evals.readers.record_ranges import records

OBJECTS = [
    {"a": 1, "text": 'line separator \u2028, next line \u0085, form feed \f, brackets ]}{[ and \\" quotes "}'},
    {"a": {"deep": [{"b": "]"}, {}]}, "text": "ü🙂"},
    {"a": 3},
]


def read(path: Path) -> list[object]:
    data = path.read_bytes()
    found = []
    for record in records(path):
        assert data[record.offset : record.offset + len(record.data)] == record.data
        found.append(json.loads(record.data))
    return found


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines(tmp_path: Path, ensure_ascii: bool, mark: bytes) -> None:
    path = tmp_path / "samples_t.jsonl"
    lines = "\n\n".join(json.dumps(item, ensure_ascii=ensure_ascii) for item in OBJECTS)
    path.write_bytes(mark + lines.encode())  # blank lines between, none at the end
    assert read(path) == OBJECTS


@pytest.mark.parametrize("indent", [None, 2])
def test_array(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "samples_t.jsonl"
    path.write_text("\n " + json.dumps(OBJECTS, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert read(path) == OBJECTS


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"a":1}\n\n{"a":2}\r\n')
    assert [record.line for record in records(path)] == [1, 3]


def test_cut_array_gives_its_last_record_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('[{"a": 1}, {"a": 2, "b": "cut')
    whole, cut = records(path)
    assert json.loads(whole.data) == {"a": 1}
    assert (cut.line, cut.data) == (2, b'{"a": 2, "b": "cut')


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"")
    assert list(records(path)) == []
