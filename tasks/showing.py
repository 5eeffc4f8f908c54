"""What is shown in the UI must never cost a run: the server may be away just then."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def showing(what: str) -> Iterator[None]:
    """A failure inside is logged and forgotten."""
    try:
        yield
    except Exception as error:
        log.warning("%s cannot be shown in the UI: %s: %s", what, type(error).__name__, error)
