"""`assay doctor`: the host's findings and the Prefect API's."""

from __future__ import annotations

import httpx

from accuracy_core.health import check_host
from accuracy_core.outcome import Outcome
from accuracy_core.schemas import Finding, Severity
from flows.api_credentials import api_credentials


def check_all(engine_python: str | None = None) -> list[Finding]:
    """All findings, the orchestrator's last."""
    return [*check_host(engine_python), check_api()]


def check_api() -> Finding:
    """Whether the configured Prefect API answers; without one a run starts a temporary API by itself."""
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if not url:
        return _finding(Severity.INFO, "none configured: each run starts a temporary one", "")
    try:
        answer = httpx.get(f"{url}/version", timeout=5, auth=api_credentials())
    except httpx.HTTPError as error:
        fix = "start the server, or unset PREFECT_API_URL"
        return _finding(Severity.ERROR, f"{url} does not answer: {type(error).__name__}", fix)
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return _finding(Severity.ERROR, f"{url} refuses us: {answer.status_code}", "set PREFECT_API_AUTH_STRING")
    if answer.status_code != httpx.codes.OK:
        return _finding(Severity.ERROR, f"{url} answers {answer.status_code}", "look at the server's log")
    return _finding(Severity.INFO, f"{url}, server {answer.text.strip().strip(chr(34))}", "")


def _finding(severity: Severity, evidence: str, fix: str) -> Finding:
    return Finding(check="Prefect API", severity=severity, evidence=evidence, fix=fix, outcome=Outcome.CONFIGURATION)
