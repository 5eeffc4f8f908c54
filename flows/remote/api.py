"""The Prefect HTTP API for a caller that must not fail for a moment's trouble."""

from __future__ import annotations

import time
from typing import Any

import httpx

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError

REQUEST_TIMEOUT_S = 30.0
#: how long a server may be away or busy before it counts as gone: a restart with a migration takes minutes
PATIENCE_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
_BUSY = {429, 502, 503, 504}
#: SQLite under load: the server passes its error on as 500
_LOCKED = ("database is locked", "SQLITE_BUSY", "database table is locked")


class Refused(Exception):
    """The server understood the request and says no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class PrefectApi:
    """Requests that are repeated while the server is away, restarts or is busy, for at most `patience_s` each.

    `url` ends with /api. Raises ConfigurationError when the server refuses the credentials, InfrastructureError when it
    stays away, Refused for every other refusal.
    """

    def __init__(self, url: str, auth: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
        try:
            parsed = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"{url!r} is no URL: {error}", fix="set PREFECT_API_URL") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigurationError(f"{url!r} is no URL of an API", fix="set PREFECT_API_URL=http://HOST:4200/api")
        user, _, password = (auth or "").partition(":")
        self.shown = str(parsed.copy_with(userinfo=b""))
        self._url = str(parsed)
        self._patience_s = patience_s
        self._client = httpx.Client(timeout=REQUEST_TIMEOUT_S, auth=(user, password) if user else None)

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, body)

    def link(self, run_id: str) -> str:
        """Page of a run in the UI, which the server has at its root."""
        return f"{self.shown.removesuffix('/api')}/runs/flow-run/{run_id}"

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        deadline, pause = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            trouble = ""
            try:
                answer = self._client.request(method, f"{self._url}{path}", json=body)
            except httpx.TransportError as error:
                trouble = f"cannot be reached ({type(error).__name__})"
            else:
                if answer.is_success:
                    return answer.json() if answer.content else None
                trouble = _passing_trouble(answer)
                if not trouble:
                    raise self._refusal(answer)
            if time.monotonic() + pause > deadline:
                raise InfrastructureError(
                    f"the Prefect API at {self.shown} {trouble}, for {self._patience_s:.0f} s now",
                    fix="is the server up, and PREFECT_API_URL right?",
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _refusal(self, answer: httpx.Response) -> Exception:
        refused: AssayError | Refused
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            refused = ConfigurationError(
                f"the Prefect API at {self.shown} refuses us: {answer.status_code}",
                fix="set PREFECT_API_AUTH_STRING=USER:PASSWORD as on the server",
            )
        else:
            refused = Refused(answer.status_code, answer.text[:4000])
        return refused


def _passing_trouble(answer: httpx.Response) -> str:
    """What is wrong with the server for the moment; '' when the answer is final."""
    if answer.status_code in _BUSY:
        return f"is busy ({answer.status_code})"
    if answer.is_server_error and any(word in answer.text for word in _LOCKED):
        return f"is busy ({answer.status_code}, its database is locked)"
    return ""
