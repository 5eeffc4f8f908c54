"""The process that runs lm-eval: `python -m accuracy_core.evals.lm_eval_child`.

Reads an EvalJob as one JSON line from stdin and writes events as JSON lines to stdout; everything that libraries
print goes to stderr. It ends when stdin closes, that is when its parent is gone, whatever the reason.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import Any, TextIO

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.evals.eval_job import EvalJob


class Events:
    """Writes events to the parent."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()


def main() -> int:
    events = Events(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # lm-eval and its tasks print to stdout
    job = EvalJob.from_json(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        from accuracy_core.evals.evaluation import Evaluation

        evaluation = Evaluation(job, events.send)
    except Exception as error:
        _report(events, error, {})
        return 1
    try:
        events.send("done", **evaluation.run())
    except Exception as error:
        _report(events, error, evaluation.progress())
        return 1
    return 0


def _die_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _report(events: Events, error: Exception, progress: dict[str, Any]) -> None:
    kind, message, fix = "internal", f"lm-eval failed: {type(error).__name__}: {error}", "see the log"
    if isinstance(error, AssayError):
        kind = "configuration" if isinstance(error, ConfigurationError) else "other"
        kind = "infrastructure" if isinstance(error, InfrastructureError) else kind
        message, fix = error.message, error.fix
    else:
        traceback.print_exc()
    events.send("error", kind=kind, message=message, fix=fix, progress=progress)


if __name__ == "__main__":
    sys.exit(main())
