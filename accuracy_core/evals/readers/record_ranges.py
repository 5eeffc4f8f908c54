"""Byte ranges of the records in a samples file: one JSON object per line, or (before 0.4.3) one JSON array.

Flat in memory: a file is walked once, and a record is read again by its range when it is needed.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from accuracy_core.evals.readers.text_files import encoding_of

_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_BLANK = b" \t\r\n"


class Record(NamedTuple):
    """`line` counts from 1 (in an array: the record's number)."""

    line: int
    offset: int
    data: bytes


def records(path: Path) -> Iterator[Record]:
    """Records of a UTF-8 file, split at the newline byte only (U+2028 and form feed are text)."""
    with path.open("rb") as stream:
        start = 3 if encoding_of(path) == "utf-8-sig" else 0
        stream.seek(start)
        if _first_byte(stream.read(4096)) == b"[":
            yield from _array_records(path)
            return
        stream.seek(start)
        offset = start
        for number, data in enumerate(stream, 1):
            if data.strip(_BLANK):
                yield Record(number, offset, data)
            offset += len(data)


def _first_byte(head: bytes) -> bytes:
    return head.lstrip(_BLANK)[:1]


def _array_records(path: Path) -> Iterator[Record]:
    """The objects of one JSON array, by counting brackets outside strings."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        depth, begin, number = 0, 0, 0
        for token in _STRUCTURE.finditer(data):
            first = data[token.start()]
            if first in b"{[":
                depth += 1
                if depth == 2:
                    begin = token.start()
            elif first in b"}]":
                depth -= 1
                if depth == 1:
                    number += 1
                    yield Record(number, begin, data[begin : token.end()])
        if depth > 0 and begin and depth >= 2:  # cut off in the middle of a record
            yield Record(number + 1, begin, data[begin:])
