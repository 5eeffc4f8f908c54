"""Finding the records of a document in a request log without holding the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from accuracy_core.evals.request_log import RequestRecord


class _Head(msgspec.Struct):
    task: str
    doc_id: int
    finish_reason: str | None = None


class RequestIndex:
    """Byte offsets of the records of each (task, doc_id)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[tuple[str, int], list[int]] = {}
        self.cut: set[tuple[str, int]] = set()  #: documents with a response that the length limit ended
        self.finished: set[tuple[str, int]] = set()  #: documents whose finish reason is known
        decoder = msgspec.json.Decoder(_Head)
        offset = 0
        with path.open("rb") as lines:
            for line in lines:
                try:
                    head = decoder.decode(line)
                except msgspec.MsgspecError:
                    offset += len(line)
                    continue
                key = (head.task, head.doc_id)
                self._offsets.setdefault(key, []).append(offset)
                if head.finish_reason:
                    self.finished.add(key)
                if head.finish_reason == "length":
                    self.cut.add(key)
                offset += len(line)

    def records(self, task: str, doc_id: int) -> list[RequestRecord]:
        """Records of one document, in the order of its requests."""
        found: list[RequestRecord] = []
        with self._path.open("rb") as stream:
            for offset in self._offsets.get((task, doc_id), []):
                stream.seek(offset)
                data: Any = json.loads(stream.readline())
                found.append(RequestRecord.model_validate(data))
        return sorted(found, key=lambda record: (record.index, record.repeat))
