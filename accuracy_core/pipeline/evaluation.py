"""Stage 1: lm-eval against the engine's server."""

from __future__ import annotations

from pathlib import Path

from accuracy_core.errors import InfrastructureError
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.identity import engine_identity
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.session import EvaluationSession
from accuracy_core.pipeline.stage_files import keep_only
from accuracy_core.pipeline.stages import recorded
from accuracy_core.schemas import StageRecord, fingerprint

STAGE = "evaluate"


def evaluate(run: Run, session: EvaluationSession) -> dict[str, float]:
    """Run the tasks of `run` against the session's server. Returns `{"task/metric,filter": score}`.

    Results and samples are written under `eval_results/` in lm-eval's own format. Raises InfrastructureError, with how
    far it got and the end of the server's log, when the server or a request fails.
    """
    from accuracy_core.evals.runner import run_lm_eval

    parameters = run.parameters.evaluation
    inputs = {"target": run.target_identity, "evaluation": parameters.model_dump(mode="json")}
    outputs: list[str] = []
    with synchronised(run.parameters.output_dir), recorded(run.run_dir, STAGE, inputs, outputs):
        server = session.server()
        try:
            result = run_lm_eval(
                parameters.tasks,
                base_url=server.base_url,
                model=server.model_name,
                tokenizer=run.tokenizer,
                results_dir=local_path(run.run_dir.eval_results),
                include_path=parameters.include_path,
                limit=parameters.limit,
                num_fewshot=parameters.num_fewshot,
                gen_kwargs=parameters.gen_kwargs,
                chat=parameters.chat,
                system_prompt=parameters.system_prompt,
                num_concurrent=parameters.num_concurrent,
                seed=parameters.seed,
                request_timeout_s=parameters.request_timeout_s,
                max_length=run.engine.max_model_len,
                cache_dir=request_cache(),
                cache_identity=answers_identity(run, session),
                on_progress=progress.reporter(STAGE),
            )
        except InfrastructureError as error:
            error.log_tail = error.log_tail or server.log_tail()
            raise
        # newest by the clock of which host? Results of earlier evaluations must not be there to be mistaken for these
        keep_only(run.run_dir, STAGE, result.files)
        outputs.append(str(Path(result.results_dir).relative_to(local_path(run.run_dir.root))))
        return dict(result.scores)


def answers_identity(run: Run, session: EvaluationSession) -> str:
    """Under what lm-eval's answers are reused: target, the engine's installation, device. Asked to refresh, only what
    this evaluation itself asked before its server died.
    """
    refreshed = session.nonce if STAGE in run.parameters.refresh else ""
    return fingerprint([run.target_identity, engine_identity(run.parameters.engine), refreshed])


def results_location(run: Run) -> str:
    """Where the results to analyse are: given ones, else what the evaluation in this run directory wrote last.

    A directory that was used for another model before holds that one's results too; they are not this run's.
    """
    if run.parameters.evaluation.results is not None:
        return run.parameters.evaluation.results
    record = run.run_dir.stages / f"{STAGE}.json"
    if record.exists():
        outputs = run.run_dir.read(record, StageRecord).outputs
        if outputs:
            return str(run.run_dir.root / outputs[0])
    return str(run.run_dir.eval_results)


def local_path(path: object) -> Path:
    """`path` of a run directory that this process works in. Raises TypeError for one elsewhere."""
    if not isinstance(path, Path):
        raise TypeError(f"{path} is not local: take it from Run.run_dir")
    return path


def request_cache() -> Path:
    """Folder of lm-eval's request caches, one file per model content, engine spec and task."""
    from accuracy_core.paths import cache_root

    return cache_root() / "lm_eval"
