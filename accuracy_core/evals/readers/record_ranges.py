"""Byte ranges of the records in a samples file: one JSON object per line, or (before 0.4.3) one JSON array.

Flat in memory: a file is walked once in batches, and a record is read again by its range when it is needed.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from typing import NamedTuple

from accuracy_core.evals.readers.text_files import encoding_of

_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_BLANK = b" \t\r\n"
_BUFFER_BYTES = 1 << 18  # stays in the processor's cache


class Record(NamedTuple):
    """`line` counts from 1 (in an array: the record's number)."""

    line: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Batch:
    """Whole lines that follow each other. `view` holds their bytes, only until the next batch is asked for.

    `ends` are the positions in `view` after each line; `line` and `offset` are those of the first in the file.
    """

    line: int
    offset: int
    view: memoryview
    ends: list[int]

    def offsets(self) -> list[int]:
        """Byte offset of every line in the file."""
        first = self.offset
        return [first, *[first + end for end in self.ends[:-1]]]

    def lengths(self) -> list[int]:
        return list(map(sub, self.ends, [0, *self.ends]))

    def is_ascii(self) -> bool:
        """False may be wrong (the buffer holds older bytes too), True never is."""
        whole = self.view.obj
        return isinstance(whole, bytes | bytearray) and whole.isascii()

    def records(self) -> Iterator[Record]:
        """One by one, without blank lines."""
        begin = 0
        for number, end in enumerate(self.ends, self.line):
            data = bytes(self.view[begin:end])
            if data.strip(_BLANK):
                yield Record(number, self.offset + begin, data)
            begin = end


def batches(path: Path) -> Iterator[Batch]:
    """Batches of a UTF-8 file, split at the newline byte only (U+2028 and form feed are text)."""
    with path.open("rb") as stream:
        start = 3 if encoding_of(path) == "utf-8-sig" else 0
        stream.seek(start)
        is_array = stream.read(4096).lstrip(_BLANK)[:1] == b"["
    if is_array:
        for record in _array_records(path):
            yield Batch(record.line, record.offset, memoryview(record.data), [len(record.data)])
    else:
        yield from _line_batches(path, start)


def records(path: Path) -> Iterator[Record]:
    """Every record of a file."""
    for batch in batches(path):
        yield from batch.records()


def _line_batches(path: Path, start: int) -> Iterator[Batch]:
    """Reads into one buffer again and again: fresh memory for every piece would take longer than the decoding."""
    buffer = bytearray(_BUFFER_BYTES)
    kept, line, offset = 0, 1, start  # `kept` bytes of an unfinished line are at the beginning
    with path.open("rb", buffering=0) as stream:
        stream.seek(start)
        while got := stream.readinto(memoryview(buffer)[kept:]):
            filled = kept + got
            whole = buffer.rfind(b"\n", 0, filled) + 1
            if whole:
                ends = _line_ends(buffer, whole)
                yield Batch(line, offset, memoryview(buffer)[:whole], ends)
                line, offset, kept = line + len(ends), offset + whole, filled - whole
                buffer[:kept] = buffer[whole:filled]
            else:
                kept = filled
            if kept == len(buffer):  # a line that is longer than the buffer
                buffer = buffer + bytearray(len(buffer))
    if kept:
        yield Batch(line, offset, memoryview(buffer)[:kept], [kept])


def _line_ends(buffer: bytearray, whole: int) -> list[int]:
    ends, end = [], 0
    while end := buffer.find(b"\n", end, whole) + 1:
        ends.append(end)
    return ends


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
        if depth >= 2:  # cut off in the middle of a record
            yield Record(number + 1, begin, data[begin:])
