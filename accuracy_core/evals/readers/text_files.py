"""Text of a file whose encoding is said by a byte-order mark, UTF-8 otherwise."""

from __future__ import annotations

import codecs
from pathlib import Path

_PIECE = 1 << 20
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


def is_utf8(path: Path) -> bool:
    """Whether the file's bytes can be read as UTF-8 as they are (a mark at the beginning aside)."""
    return encoding_of(path) in ("utf-8", "utf-8-sig")


def write_utf8_copy(path: Path, target: Path) -> None:
    """Copy in UTF-8, a piece at a time. Bytes that are no text of the declared encoding become U+FFFD."""
    with (
        path.open(encoding=encoding_of(path), errors="replace", newline="") as source,
        target.open("w", encoding="utf-8", newline="") as copy,
    ):
        while piece := source.read(_PIECE):
            copy.write(piece)


def read_text(path: Path) -> str:
    """The whole text. Raises ValueError (UnicodeDecodeError) for bytes that are no such text."""
    return path.read_text(encoding=encoding_of(path))
