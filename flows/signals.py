"""Signals that end a run from outside."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def hang_up_interrupts() -> Iterator[None]:
    """While inside, a closed terminal (SIGHUP) ends the run as Ctrl-C does: with records of its stages.

    Where SIGHUP is ignored (`nohup`) or handled already, or off the main thread, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
