"""Text of a file whose encoding is said by a byte-order mark, UTF-8 otherwise."""

from __future__ import annotations

import codecs
from pathlib import Path

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(path: Path) -> str:
    """Python's name of the encoding that the file's first bytes declare."""
    with path.open("rb") as stream:
        head = stream.read(4)
    return next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")


def read_text(path: Path) -> str:
    """The whole text. Raises ValueError (UnicodeDecodeError) for bytes that are no such text."""
    return path.read_text(encoding=encoding_of(path))
