"""Following a run to its end, and ending it when it takes too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from accuracy_core.errors import InfrastructureError
from accuracy_core.outcome import ExitCode
from flows.remote.api import PrefectApi, Refused

POLL_S = 2.0
#: how long a cancelled run is watched until its engine is gone
CANCEL_WAIT_S = 120.0
_FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
_BY_NAME = {"AccuracyFailed": ExitCode.ACCURACY, "ConfigurationFailed": ExitCode.CONFIGURATION}


class TookTooLong(Exception):
    """The run was not over in time; it has been cancelled."""


def follow(api: PrefectApi, run_id: str, say: Callable[[str], None], *, timeout_s: float | None) -> dict[str, Any]:
    """Wait for the end of a run and tell every change of its state. Returns the final state.

    A run that is not over after `timeout_s` is cancelled: TookTooLong. Raises InfrastructureError when the API stays
    away, or the run was deleted.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = ""
    while True:
        state = _state(api, run_id)
        text = _words(state)
        if text != told:
            say(text)
            told = text
        if state.get("type") in _FINAL:
            return state
        if deadline is not None and time.monotonic() >= deadline:
            cancel(api, run_id, say)
            raise TookTooLong(f"not over after {timeout_s:.0f} s; last state: {text}")
        time.sleep(POLL_S)


def cancel(api: PrefectApi, run_id: str, say: Callable[[str], None]) -> None:
    """Cancel a run and wait, for a while, until it is."""
    try:
        api.post(f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    except Refused as refused:
        say(f"the run could not be cancelled: {refused}")
        return
    deadline = time.monotonic() + CANCEL_WAIT_S
    while time.monotonic() < deadline:
        state = _state(api, run_id)
        if state.get("type") in _FINAL:
            say(_words(state))
            return
        time.sleep(POLL_S)
    say("the run is still being cancelled")


def exit_code_of(state: dict[str, Any]) -> int:
    """Exit code of the command line for a final state: 0 passed, 2 accuracy, 3 configuration, 1 anything else."""
    if state.get("type") == "COMPLETED":
        return ExitCode.PASSED
    return _BY_NAME.get(str(state.get("name")), ExitCode.ERROR) if state.get("type") == "FAILED" else ExitCode.ERROR


def _state(api: PrefectApi, run_id: str) -> dict[str, Any]:
    try:
        run: dict[str, Any] = api.get(f"/flow_runs/{run_id}")
    except Refused as refused:
        raise InfrastructureError(f"run {run_id} cannot be read: {refused}") from refused
    return run.get("state") or {}


def _words(state: dict[str, Any]) -> str:
    message = str(state.get("message") or "").strip()
    return f"{state.get('name') or 'no state yet'}{': ' + message if message else ''}"
