"""Device flows without lm-eval, references and judgement: lease, supervisor, engine, session and states are the real
ones, and a run starts in two seconds of processor time instead of nine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from prefect import flow, task
from prefect.client.schemas.objects import State
from prefect.states import Completed

from accuracy_core.engines.cores import lease_cores
from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.errors import AssayError, EngineDiedError
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.session import EvaluationSession
from accuracy_core.prompts.conclusion import conclude_error
from accuracy_core.schemas import ReplayRequest, RunParameters
from flows.states import state_of
from tasks.retrying import infrastructure_only


@task(retries=1, retry_condition_fn=infrastructure_only, persist_result=False)
def _ask_server(run: Run) -> None:
    with EvaluationSession(run, Path(run.run_dir.root) / "eval_results" / "server.log") as session:
        server = session.server()
        try:
            body = {"model": server.model_name, "prompt": [[1, 2]], "max_tokens": 2}
            httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=None).raise_for_status()
        except httpx.HTTPError as error:
            raise EngineDiedError(f"the server does not answer: {error!r}") from error


@task(persist_result=False)
def _replay(run: Run) -> None:
    log = Path(run.run_dir.root) / "prompt_analysis" / "engine.log"
    with (
        lease_cores(run.engine, timeout_s=600) as lease,
        OfflineVllmEngine(run.engine, lease=lease, log_path=log) as engine,
    ):
        engine.replay([ReplayRequest(request_id="r", prompt_token_ids=[1, 2], max_new_tokens=2)])


@flow(name="light-eval", retries=0, persist_result=False)
def light_eval(parameters: RunParameters) -> State[Any]:
    return _stated(_ask_server, parameters)


@flow(name="light-prompt", retries=0, persist_result=False)
def light_prompt(parameters: RunParameters) -> State[Any]:
    return _stated(_replay, parameters)


def _stated(what: Any, parameters: RunParameters) -> State[Any]:
    from accuracy_core.models import resolve_model

    model = str(resolve_model(parameters.engine.model))
    run = Run(
        parameters=parameters, model_path=model, model_name="light", model_fingerprint="none", target_identity="none"
    )
    try:
        what(run)
    except AssayError as error:
        return state_of(conclude_error(error))
    return Completed()
