"""JSON lines to and from the offline engine's process."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

from accuracy_core.engines.supervised import SupervisedProcess
from accuracy_core.errors import EngineDiedError

_READ_BYTES = 1 << 16
_EXIT_TIMEOUT_S = 2.0
#: how often a silent engine's supervisor is looked at
_LOOK_S = 0.5


class ChannelClosed(Exception):
    """The other end is gone. `code` is its exit code when it is known."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"exit code {code}" if code is not None else "no exit code")
        self.code = code


class Channel:
    """This end of the protocol that `assay_inside.worker` describes."""

    def __init__(self, process: SupervisedProcess) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process was started without pipes")
        self._process = process
        self._in = process.stdin
        self._out = process.stdout.fileno()
        self._buffer = b""

    def send(self, **message: Any) -> None:
        """Raises ChannelClosed when nobody reads any more."""
        try:
            self._in.write(json.dumps(message).encode() + b"\n")
            self._in.flush()
        except (BrokenPipeError, ValueError, OSError):
            raise ChannelClosed(self._process.wait(_EXIT_TIMEOUT_S)) from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next message. Raises ChannelClosed at end of file, TimeoutError after `timeout_s`.

        ChannelClosed also when the supervisor is gone and nothing is left to read: a process that the engine started
        may have inherited the other end, and there would never be an end of file.
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            gone = self._process.poll()  # asked before the pipe: what was written before the end is read
            left = deadline - time.monotonic()
            if not select.select([self._out], [], [], max(0.0, min(left, _LOOK_S)))[0]:
                if gone is not None:
                    raise ChannelClosed(gone)
                if left <= 0:
                    raise TimeoutError(f"no answer within {timeout_s:.0f} s")
                continue
            part = os.read(self._out, _READ_BYTES)
            if not part:
                raise ChannelClosed(self._process.wait(_EXIT_TIMEOUT_S))
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            message = json.loads(line)
        except ValueError:
            raise EngineDiedError(f"the engine's process answered {line[:200]!r}, which is no JSON") from None
        if not isinstance(message, dict):
            raise EngineDiedError(f"the engine's process answered {line[:200]!r}, which is no JSON object")
        return message
