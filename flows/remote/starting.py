"""Starting a run of a deployment, with every mistake said before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from accuracy_core.errors import ConfigurationError, InfrastructureError
from flows.remote.api import PrefectApi, Refused
from flows.remote.parameter_names import unknown_names

DEFAULT_FLOW = "accuracy-debugger"
_PAGE = 200


def find_deployment(api: PrefectApi, name: str) -> dict[str, Any]:
    """The deployment `<flow>/<name>`, or `<name>` of the main flow. Raises ConfigurationError with near names."""
    full = name if "/" in name else f"{DEFAULT_FLOW}/{name}"
    flow, _, deployment = full.partition("/")
    try:
        found: dict[str, Any] = api.get(f"/deployments/name/{flow}/{deployment}")
        return found
    except Refused as refused:
        if refused.status != 404:
            raise InfrastructureError(f"the Prefect API answers {refused}") from refused
    known = sorted(_deployments(api))
    near = difflib.get_close_matches(full, known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"
    raise ConfigurationError(f"the server at {api.shown} has no deployment {full!r}", fix=hint)


def wrapped(parameters: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """`parameters` as the flow takes them: its fields may be given without the name of its one big argument."""
    arguments = schema.get("properties", {})
    if "parameters" in arguments and parameters and not set(parameters) & set(arguments):
        return {"parameters": parameters}
    return parameters


def start_run(
    api: PrefectApi, deployment: dict[str, Any], parameters: dict[str, Any], *, key: str, tags: Sequence[str] = ()
) -> dict[str, Any]:
    """Create the run. The same `key` again gives the same run: a repeated request starts nothing twice.

    Raises ConfigurationError for parameters that the deployment does not know or refuses.
    """
    schema = deployment.get("parameter_openapi_schema") or {}
    problems = unknown_names(parameters, schema)
    if problems:
        raise ConfigurationError("the parameters are not usable:\n  " + "\n  ".join(problems))
    body = {"parameters": parameters, "idempotency_key": key, "tags": list(tags)}
    try:
        run: dict[str, Any] = api.post(f"/deployments/{deployment['id']}/create_flow_run", body)
    except Refused as refused:
        if refused.status in (400, 404, 409, 422):
            raise ConfigurationError(f"the deployment refuses the parameters: {refused.text}") from refused
        raise InfrastructureError(f"the run could not be created: {refused}") from refused
    return run


def _deployments(api: PrefectApi) -> list[str]:
    found: list[dict[str, Any]] = api.post("/deployments/filter", {"limit": _PAGE})
    flows: list[dict[str, Any]] = api.post("/flows/filter", {"limit": _PAGE})
    names = {flow["id"]: flow["name"] for flow in flows}
    return [f"{names.get(item['flow_id'], '?')}/{item['name']}" for item in found]
