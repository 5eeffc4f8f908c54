"""Answers kept per (model, engine, task), so that a retry asks only what is missing.

lm-eval's own `use_cache` keys an answer by its text only, so another model on the same file gets the old answers; it
also unpickles what it reads. Here the file's name carries the identity of model and engine, the key is a digest of
the whole payload (token ids, stop strings, seed, …), and values are JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from accuracy_core.errors import InfrastructureError
from accuracy_core.schemas import canonical_json


class RequestCache:
    """One SQLite file per task under `root`. Every answer is on disk as soon as `put` returns."""

    def __init__(self, root: Path, identity: str) -> None:
        if not identity:
            raise ValueError("a request cache needs the identity of model and engine")
        self._folder = root / hashlib.sha256(identity.encode()).hexdigest()[:24]
        self._files: dict[str, sqlite3.Connection] = {}

    @staticmethod
    def key(endpoint: str, payload: dict[str, Any]) -> str:
        """sha256 over the endpoint and everything that is sent to it."""
        return hashlib.sha256(canonical_json([endpoint, payload]).encode()).hexdigest()

    def path(self, task: str) -> Path:
        """File of `task`; the name stays readable, and unique for names that differ only in odd characters."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "_", task)[:80]
        return self._folder / f"{readable}-{hashlib.sha256(task.encode()).hexdigest()[:8]}.sqlite"

    def get(self, task: str, key: str) -> dict[str, Any] | None:
        """The stored answer, or None. A damaged entry counts as missing."""
        try:
            row = self._open(task).execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            answer = json.loads(row[0]) if row else None
        except (sqlite3.DatabaseError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    def put(self, task: str, key: str, answer: dict[str, Any]) -> None:
        """Store an answer. Raises InfrastructureError when the disk refuses."""
        try:
            self._open(task).execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))
        except sqlite3.Error as error:
            raise InfrastructureError(
                f"request cache {self.path(task)} cannot be written: {error}",
                fix="free disk space, or delete that file",
            ) from error

    def close(self) -> None:
        for connection in self._files.values():
            connection.close()
        self._files.clear()

    def _open(self, task: str) -> sqlite3.Connection:
        if task not in self._files:
            path = self.path(task)
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")  # readers and a killed writer never block each other
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
            self._files[task] = connection
        return self._files[task]
