"""From an engine that did not start to a typed error that says what to do."""

from __future__ import annotations

from accuracy_core.engines.logs import FIXES, FailureKind, classify
from accuracy_core.errors import AssayError, EngineArgumentError, EngineStartError

#: kinds that are the user's to correct
_CONFIGURATION = (FailureKind.ARGUMENT, FailureKind.MODEL, FailureKind.WEIGHTS, FailureKind.PORT, FailureKind.FAULT)


def start_error(message: str, log_tail: str, *, kind: FailureKind | None = None) -> AssayError:
    """EngineArgumentError when the log (or `kind`) says that argument, model, weights, port or fault are
    wrong, else EngineStartError.

    Running out of memory is not provably the configuration's fault, others may hold it: EngineStartError, with advice.
    """
    kind = kind or classify(f"{message}\n{log_tail}")
    cause = "" if kind is FailureKind.UNKNOWN else f" ({kind.value})"
    error = EngineArgumentError if kind in _CONFIGURATION else EngineStartError
    return error(f"{message}{cause}", fix=FIXES[kind], log_tail=log_tail)
