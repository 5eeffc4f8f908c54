from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from accuracy_core.evals.readers.columns import Columns, judge_value
from accuracy_core.evals.readers.fast_decode import RecordDecoder, record_flags
from accuracy_core.evals.readers.record_ranges import Record, batches


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1.0, 1.0),
        (0, 0.0),
        (True, 1.0),
        ([True, False], 0.5),
        ([True, True], 1.0),
        ([], 1.0),
        ("0.25", 0.25),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (math.inf, math.inf),
    ],
)
def test_values_that_judge(value: object, number: float) -> None:
    assert judge_value(value) == (number, "")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([0, 1], "a pair"),
        ([-3.5, False], "a pair"),
        ([0.1, 0.2, 0.7], "a list of numbers"),
        (["a", "b"], "a list of texts"),
        (["a", ["b"]], "a list of texts"),
        (["0.5", "0.5"], "a list of numbers"),
        ("N/A", "the text 'N/A'"),
        (None, "missing"),
        ({"a": 1}, "a dict"),
        (["1", 0.5], "a pair"),
    ],
)
def test_values_that_do_not(value: object, what: str) -> None:
    number, problem = judge_value(value)
    assert math.isnan(number)
    assert problem == what


def line(doc_id: int, **fields: object) -> bytes:
    record = {
        "doc_id": doc_id,
        "doc": {"filter": "inner", "exact_match": 9},
        "arguments": {"gen_args_0": {"arg_0": "p", "arg_1": {"until": ["\n"], "max_gen_toks": 4}}},
        "resps": [["four words are here"]],
        "filter": "f",
        "metrics": ["exact_match"],
        "doc_hash": "ff" * 32,
        "exact_match": 1.0,
    }
    return json.dumps(record | fields).encode()


def decode(path: Path, lines: list[bytes]) -> tuple[Columns, list[Record]]:
    """The decoder's columns, and the records that it refused."""
    path.write_bytes(b"\n".join(lines))
    columns, broken = Columns(), []
    RecordDecoder(columns, 0, lambda record, error: broken.append(record)).add_all(batches(path))
    return columns, broken


def plainly(lines: list[bytes]) -> Columns:
    """The columns by json.loads."""
    columns = Columns()
    for data in lines:
        record = json.loads(data)
        columns.add_record(record, (0, 0, len(data)), record_flags(record))
    return columns


@pytest.mark.parametrize("repeats", [1, 300])
def test_the_fast_way_gives_what_the_plain_way_gives(tmp_path: Path, repeats: int) -> None:
    lines = [
        line(0),
        line(1, exact_match=0.0, resps=[["four words are cut"]], filter="g"),
        line(2, resps=[["short"]]),
        line(3, resps=[[""]]),
        line(4, resps=[["\n\t "]]),
        line(5, resps=[["a", " "]]),
        line(6, exact_match=math.nan),
        line(7, exact_match=math.inf),
        line(8, exact_match=[True, False]),
        line(9, exact_match="N/A"),
        line(10, metrics=["exact_match", "f1"], f1=0.5),
        line(11, metrics=["f1"], f1=0.25),
        line(12),
        line(13, filter=None),
        line(14, doc_hash=None, unknown=3),
        b'{"doc_id": 15, "metrics": ["exact_match"]}',
        line(16, resps=[["one stop\n and more words here"]]),
        line(17, metrics=None),
    ]
    # a run of like lines is decoded at once, every odd one breaks the run
    lines = [data for data in lines for _ in range(repeats)]
    (fast, broken), slow = decode(tmp_path / "s.jsonl", lines), plainly(lines)
    assert broken == []
    for name in ("doc_id", "filter_code", "empty", "truncated"):
        assert getattr(fast, name) == getattr(slow, name), name
    assert fast.filters == slow.filters
    assert fast.metrics.keys() == slow.metrics.keys()
    for metric, column in fast.metrics.items():
        np.testing.assert_array_equal(np.array(column.values), np.array(slow.metrics[metric].values))
        assert column.judged == slow.metrics[metric].judged
    assert list(fast.truncated)[: 3 * repeats : repeats] == [1, 1, 0]
    assert list(fast.empty)[2 * repeats : 6 * repeats : repeats] == [0, 1, 1, 1]
    assert fast.truncated[16 * repeats] == 0, "it contains its stop text"


def test_most_lines_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = []
    plain = RecordDecoder._add_one
    monkeypatch.setattr(
        RecordDecoder, "_add_one", lambda self, record: one_by_one.append(record) or plain(self, record)
    )
    columns, _ = decode(tmp_path / "s.jsonl", [line(number) for number in range(5000)])
    assert list(columns.doc_id) == list(range(5000))
    assert len(one_by_one) < 2000


@pytest.mark.parametrize("data", [b'{"doc_id": 1, "metr', b"[1, 2]", b"3", b'{"doc_id": 1}}', b"not json", b"{} {}"])
def test_no_record(tmp_path: Path, data: bytes) -> None:
    columns, broken = decode(tmp_path / "s.jsonl", [line(0), data, line(1)])
    assert list(columns.doc_id) == [0, 1]
    assert [(record.line, record.data.strip()) for record in broken] == [(2, data)]


@pytest.mark.parametrize("damage", [b'"inn\n', b'"inn\xff"', b'"inn\\q"'])
def test_damage_in_a_field_that_is_not_needed_is_still_seen(tmp_path: Path, damage: bytes) -> None:
    lines = [line(number) for number in range(100)]
    lines[57] = lines[57].replace(b'"inner"', damage)
    columns, broken = decode(tmp_path / "s.jsonl", lines)
    assert len(columns) == 99
    assert broken
    assert broken[0].line == 58


def test_lines_longer_than_the_buffer(tmp_path: Path) -> None:
    texts = ["x" * size for size in (10, 300_000, 10, 1_500_000)]
    lines = [line(number, doc={"q": text}) for number, text in enumerate(texts)]
    columns, _ = decode(tmp_path / "s.jsonl", lines)
    whole = (tmp_path / "s.jsonl").read_bytes()
    found = [
        json.loads(whole[start : start + size]) for start, size in zip(columns.offset, columns.length, strict=True)
    ]
    assert [record["doc"]["q"] for record in found] == texts
