"""Is a safetensors file complete? Its header says how long it must be, so no tensor has to be read."""

from __future__ import annotations

import json
from pathlib import Path

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


def damage(file: Path) -> str:
    """What is wrong with `file`, or '' when its length is the one its header asks for.

    Format: 8 bytes little-endian length n, n bytes of JSON with `data_offsets` per tensor, then the data.
    Raises OSError when the file cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            return f"its {size} bytes end within the header, or it is no safetensors file"
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            expected = _LENGTH_BYTES + length + max(ends, default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return "its header is not readable"
    return "" if size == expected else f"it has {size} bytes and its header asks for {expected}"
