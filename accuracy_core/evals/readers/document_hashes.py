"""lm-eval's digests of the documents, read only when two runs are compared."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from accuracy_core.evals.readers.sample_table import FileSource, SampleTable


class _Head(msgspec.Struct):
    doc_hash: Any = None


def document_hashes(table: SampleTable) -> np.ndarray:
    """(n,) int64, one per record: equal for equal digests within this process, 0 where a record has none."""
    frame, source = table.frame, table.source
    places = zip(frame["file"].tolist(), frame["offset"].tolist(), frame["length"].tolist(), strict=True)
    if not isinstance(source, FileSource):
        digests = [source.load(*place).get("doc_hash") for place in places]
        return _hashed(digests)
    decode = msgspec.json.Decoder(_Head).decode
    digests = []
    streams = [path.open("rb", buffering=1 << 18) for path in source.paths]
    try:
        for file, offset, length in places:
            streams[file].seek(offset)
            data = streams[file].read(length)
            try:
                digests.append(decode(data).doc_hash)
            except msgspec.MsgspecError:  # NaN literals
                digests.append(source.load(file, offset, length).get("doc_hash"))
    finally:
        for stream in streams:
            stream.close()
    return _hashed(digests)


def _hashed(digests: list[Any]) -> np.ndarray:
    return np.array([hash(item) if isinstance(item, str) and item else 0 for item in digests], np.int64)
