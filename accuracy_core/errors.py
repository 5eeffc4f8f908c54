"""One hierarchy of errors. Every error knows which outcome it stands for, and says what to do."""

from __future__ import annotations

from typing import ClassVar

from accuracy_core.outcome import Outcome


class AssayError(Exception):
    """Base of everything raised on purpose.

    `message` says what is wrong, `fix` what the user can do about it; both are shown.
    """

    outcome: ClassVar[Outcome] = Outcome.INFRASTRUCTURE

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix)  # both as args: keeps the error picklable across processes
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  what to do: {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.fix, self.__dict__)


def _rebuild(kind: type[AssayError], message: str, fix: str, state: dict[str, object]) -> AssayError:
    error = kind.__new__(kind)
    AssayError.__init__(error, message, fix=fix)
    error.__dict__.update(state)
    return error


class ConfigurationError(AssayError):
    """The set-up is wrong: an argument, a path, a threshold's name, a chat template. Raised before expensive work."""

    outcome = Outcome.CONFIGURATION


class InputMismatchError(ConfigurationError, ValueError):
    """Tensors or lists that do not fit together: shapes, dtypes, lengths. The message holds both sides."""


class InfrastructureError(AssayError):
    """An engine, a server, the storage or the network died. Says nothing about numerics; a retry may help.

    `log_tail` holds the last lines of the log of whatever died.
    """

    outcome = Outcome.INFRASTRUCTURE

    def __init__(self, message: str, *, fix: str = "", log_tail: str = "") -> None:
        super().__init__(message, fix=fix)
        self.log_tail = log_tail

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n  last lines of the log:\n{self.log_tail}" if self.log_tail else text


class EngineStartError(InfrastructureError):
    """The engine did not come up for a reason that is not (provably) the user's argument."""


class EngineArgumentError(ConfigurationError):
    """The engine refused an argument, a model or a port: start-up failed because of the configuration."""

    def __init__(self, message: str, *, fix: str = "", log_tail: str = "") -> None:
        super().__init__(message, fix=fix)
        self.log_tail = log_tail

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n  last lines of the log:\n{self.log_tail}" if self.log_tail else text


class EngineDiedError(InfrastructureError):
    """The engine was up and is gone, or no longer answers."""


class DeviceBusyError(InfrastructureError, TimeoutError):
    """The device cores are held by somebody else."""


class ReferenceError_(AssayError):
    """The reference itself is unusable (non-finite golden, wrong loader): there is nothing to judge against."""

    outcome = Outcome.NOT_MEASURED


class NotMeasuredError(AssayError):
    """A capability is missing or there is too little data. Never a pass, never a failure."""

    outcome = Outcome.NOT_MEASURED
