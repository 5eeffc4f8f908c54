"""`assay trigger`: one run of a deployment, for a pipeline."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.text import Text

from accuracy_core.errors import AssayError, ConfigurationError
from accuracy_core.outcome import ExitCode, exit_code
from flows.api_credentials import api_auth_string

Many = list[str]


def trigger(
    deployment: Annotated[str, typer.Argument(help="`<flow>/<name>`, or the name of one of accuracy-debugger")],
    params: Annotated[str | None, typer.Option(help="parameters as JSON, or @FILE with JSON or YAML")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end; the exit code is the verdict")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="seconds after which the run is cancelled; needs --wait")
    ] = None,
    fetch: Annotated[Path, typer.Option(help="where report.json, junit.xml and the page go")] = Path("assay-results"),
    no_fetch: Annotated[bool, typer.Option("--no-fetch", help="leave the results where they are")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="the same key again means the same run, e.g. the id of the pipeline")
    ] = None,
    tag: Annotated[Many | None, typer.Option(help="tag of the run; may be repeated")] = None,
    api: Annotated[str | None, typer.Option(help="URL of the API; default: PREFECT_API_URL or the profile")] = None,
    patience: Annotated[float, typer.Option(min=0, help="seconds that the API may be away")] = 300.0,
) -> None:
    """Start a run on a Prefect server, follow it, and fetch what it found.

    Exit code: 0 passed (without --wait: started), 2 accuracy, 3 configuration, 4 timed out and cancelled, 1 anything
    else.
    """
    console = Console(soft_wrap=True)
    from flows.cli.console import show_error

    try:
        if timeout is not None and not wait:
            raise ConfigurationError("--timeout without --wait: nobody would be there to cancel", fix="add --wait")
        code = _trigger(
            console, deployment, read_parameters(params), wait, timeout, None if no_fetch else fetch,
            idempotency_key or uuid.uuid4().hex, tag or [], api, patience,
        )  # fmt: skip
    except AssayError as error:
        show_error(console, error)
        code = exit_code(error.outcome, None)
    raise typer.Exit(code)


def read_parameters(text: str | None) -> dict[str, Any]:
    """From JSON text, or `@file` with JSON or YAML. Raises ConfigurationError for anything but a mapping."""
    if text is None:
        return {}
    source = "--params"
    try:
        if text.startswith("@"):
            source = text[1:]
            found = yaml.safe_load(Path(source).expanduser().read_text(encoding="utf-8"))
        else:
            found = json.loads(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{source} cannot be read: {error}", fix="give JSON, or @FILE") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{source} holds no mapping of parameters", fix='give {"engine": {"model": …}}')
    return found


def _trigger(
    console: Console,
    name: str,
    parameters: dict[str, Any],
    wait: bool,
    timeout_s: float | None,
    folder: Path | None,
    key: str,
    tags: list[str],
    url: str | None,
    patience_s: float,
) -> int:
    from flows.remote.api import PrefectApi
    from flows.remote.following import TookTooLong, exit_code_of, follow
    from flows.remote.starting import find_deployment, start_run, wrapped

    def say(text: str) -> None:
        console.print(Text(text))

    address, auth = _server(url)
    api = PrefectApi(address, auth, patience_s=patience_s)
    deployment = find_deployment(api, name)
    given = wrapped(parameters, deployment.get("parameter_openapi_schema") or {})
    run = start_run(api, deployment, given, key=key, tags=tags)
    say(f"run {run['name']}: {api.link(run['id'])}")
    if not wait:
        return ExitCode.PASSED
    try:
        state = follow(api, run["id"], say, timeout_s=timeout_s)
    except TookTooLong as late:
        say(str(late))
        return ExitCode.TIMED_OUT
    except KeyboardInterrupt:
        say(f"the run goes on; cancel it with: prefect flow-run cancel {run['id']}")
        raise
    if folder is not None:
        _fetch(api, run["id"], folder, say)
    return exit_code_of(state)


def _fetch(api: Any, run_id: str, folder: Path, say: Any) -> None:
    """What cannot be fetched is said; the verdict stands without it."""
    from flows.remote.fetching import RESULTS, fetch, run_location

    try:
        location = run_location(api, run_id)
        if location is None:
            say("the run has written no report")
            return
        files = fetch(location, folder)
    except AssayError as error:
        say(f"results not fetched: {error}")
        return
    for file in files:
        say(f"fetched {file}")
    missing = set(RESULTS) - {file.name for file in files}
    if missing:
        say(f"not in {location}: {', '.join(sorted(missing))}")


def _server(url: str | None) -> tuple[str, str | None]:
    from prefect.settings import PREFECT_API_URL

    address = url or PREFECT_API_URL.value()
    if not address:
        raise ConfigurationError("no Prefect API is configured", fix="set PREFECT_API_URL, or give --api URL")
    return address, api_auth_string()
