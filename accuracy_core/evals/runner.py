"""Running lm-eval against an OpenAI-compatible server, in a process of its own.

Its own process, because lm-eval seeds and loads globally, cannot be cancelled, and must not outlive the run: stopping
it is killing one child, and the child ends by itself when this process is gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.catalogue import Catalogue
from accuracy_core.evals.child_process import run_child
from accuracy_core.evals.endpoint import served_model, server_root
from accuracy_core.evals.eval_job import EvalJob, EvalRun, EvaluationFailed
from accuracy_core.evals.preconditions import check_tasks
from accuracy_core.evals.readers.scores import scores_of_file
from accuracy_core.evals.sampling_defaults import NEUTRAL_SAMPLING, overridden_defaults
from accuracy_core.schemas import write_text

Progress = Callable[[int, int], None]
_FALLBACK_CONTEXT = 2048
_PARTIAL = "partial_results.json"


def run_lm_eval(
    tasks: Sequence[str],
    *,
    base_url: str,
    model: str,
    tokenizer: str | Path,
    results_dir: str | Path,
    include_path: str | Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    gen_kwargs: Mapping[str, Any] | None = None,
    chat: bool = False,
    system_prompt: str | None = None,
    num_concurrent: int = 8,
    seed: int = 1234,
    request_timeout_s: float = 300,
    max_length: int | None = None,
    cache_dir: str | Path | None = None,
    cache_identity: str = "",
    on_progress: Progress | None = None,
    api_key_env: str | None = None,
    max_retries: int = 3,
    long_prompts: str = "error",
) -> EvalRun:
    """Evaluate `tasks` on a running server and write lm-eval's files to `results_dir/<model>/`.

    `base_url` is the server (with or without /v1), `model` the name it serves, `tokenizer` a folder or hub id.
    `max_length` (tokens) defaults to what the server says. `cache_identity` must name model and engine by content
    (fingerprint, engine spec): answers in `cache_dir` are reused only under the same identity, and without one
    nothing is cached. `on_progress(done, total)` counts requests. `api_key_env` names the variable that holds the
    server's key.

    Raises ConfigurationError before any request for what cannot work (unknown task, `limit` below 1, data that cannot
    be had, prompts longer than the context, a model the server does not have); EvaluationFailed (infrastructure) with
    how far it got when the server dies, times out or returns nothing; its answers so far stay in the cache.
    """
    _check_limit(limit)
    if num_concurrent < 1:
        raise ConfigurationError(f"num_concurrent {num_concurrent}", fix="give at least 1")
    catalogue = check_tasks(tasks, include_path)
    if chat:
        _need_generation(catalogue, tasks)
    root = server_root(base_url)
    key = _api_key(api_key_env)
    served = served_model(root, model, api_key=key)
    job = EvalJob(
        tasks=list(tasks),
        results_dir=str(_writable(results_dir)),
        base_url=root,
        model=model,
        tokenizer=str(tokenizer),
        include_path=str(Path(include_path).absolute()) if include_path else None,
        task_folders=_folders(catalogue, tasks),
        limit=limit,
        num_fewshot=num_fewshot,
        gen_kwargs=dict(gen_kwargs or {}),
        chat=chat,
        system_prompt=system_prompt,
        num_concurrent=num_concurrent,
        seed=seed,
        request_timeout_s=request_timeout_s,
        max_retries=max_retries,
        max_length=max_length or served.max_model_len or _FALLBACK_CONTEXT,
        long_prompts="truncate" if long_prompts == "truncate" else "error",
        cache_dir=str(Path(cache_dir).absolute()) if cache_dir else None,
        cache_identity=cache_identity,
        api_key_env=api_key_env,
    )
    overridden = overridden_defaults(served.root) or overridden_defaults(str(tokenizer))
    notes = [
        f"generation_config.json would set {name}={value}; requests send {NEUTRAL_SAMPLING.get(name, 0)} instead"
        for name, value in overridden.items()
        if name not in job.gen_kwargs
    ]
    if cache_dir and not cache_identity:
        notes.append("no request cache: the identity of model and engine is not known")
    return _finished(job, _run(job, on_progress), overridden, notes)


def run_reference_eval(
    tasks: Sequence[str],
    *,
    model: str | Path,
    results_dir: str | Path,
    tokenizer: str | Path | None = None,
    include_path: str | Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    gen_kwargs: Mapping[str, Any] | None = None,
    seed: int = 1234,
    dtype: str = "float32",
    batch_size: int = 16,
    num_threads: int = 1,
) -> EvalRun:
    """The same tasks on the checkpoint in Hugging Face on the CPU: `reference_results` for `run_task_analysis`.

    `model` is a folder or hub id. Raises ConfigurationError as `run_lm_eval` does.
    """
    _check_limit(limit)
    catalogue = check_tasks(tasks, include_path)
    job = EvalJob(
        tasks=list(tasks),
        results_dir=str(_writable(results_dir)),
        backend="hf",
        model=str(model),
        tokenizer=str(tokenizer or model),
        include_path=str(Path(include_path).absolute()) if include_path else None,
        task_folders=_folders(catalogue, tasks),
        limit=limit,
        num_fewshot=num_fewshot,
        gen_kwargs=dict(gen_kwargs or {}),
        seed=seed,
        dtype=dtype,
        batch_size=batch_size,
        num_threads=num_threads,
    )
    overridden = overridden_defaults(str(model))
    return _finished(job, _run(job, None), overridden, [])


def _run(job: EvalJob, on_progress: Progress | None) -> dict[str, Any]:
    """Run the child; what it had reached when it failed is written to `partial_results.json`."""
    partial = Path(job.results_dir) / _PARTIAL
    partial.unlink(missing_ok=True)
    try:
        return run_child(job, on_progress)
    except EvaluationFailed as failed:
        write_text(partial, json.dumps(failed.as_dict(), indent=2) + "\n")
        raise


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit {limit}: nothing would be evaluated", fix="give at least 1, or no limit")


def _finished(job: EvalJob, closing: dict[str, Any], overridden: dict[str, Any], notes: list[str]) -> EvalRun:
    files = [Path(path) for path in closing["files"]]
    settings = job.model_dump(mode="json", exclude={"schema_version", "results_dir", "cache_dir", "cache_identity"})
    settings |= {
        "bos": closing.get("bos"), "eos_string": closing.get("eos_string"), "sampling": NEUTRAL_SAMPLING,
        "generation_defaults_overridden": overridden,
        "temperature": job.gen_kwargs.get("temperature", "the task's, else 0"),
    }  # fmt: skip
    run = EvalRun(
        scores=scores_of_file(files[0]),
        results_dir=Path(closing["folder"]),
        files=files,
        settings=settings,
        n_requests=closing["n_requests"],
        n_from_cache=closing["n_from_cache"],
        n_empty=closing["n_empty"],
        n_null=closing["n_null"],
        n_truncated=closing["n_truncated"],
        warnings=closing["warnings"],
        notes=notes,
    )
    nothing, asked = closing["n_unproduced"], closing["n_generated"]
    if nothing:
        failed = EvaluationFailed(
            f"the server answered {nothing} of {asked} generation requests with nothing: "
            f"{'; '.join(text for text in run.warnings if 'response' in text)}. They score 0.",
            fix="see the server's log; the answers are in the results directory",
        )
        failed.done = failed.total = run.n_requests
        failed.partial_scores = {name: (value, 0) for name, value in run.scores.items()}
        raise failed
    return run


def _folders(catalogue: Catalogue, tasks: Sequence[str]) -> list[str] | None:
    folders = catalogue.folders(tasks)
    return None if folders is None else [str(folder) for folder in folders]


def _need_generation(catalogue: Catalogue, tasks: Sequence[str]) -> None:
    leaves = dict.fromkeys(leaf for task in tasks for leaf in catalogue.leaves(task))
    entries = {leaf: catalogue.get(leaf) for leaf in leaves}
    scored = [leaf for leaf, entry in entries.items() if entry and entry.output_type not in ("", "generate_until")]
    if scored:
        raise ConfigurationError(
            f"the chat endpoint gives no log-likelihoods, which {', '.join(scored)} need",
            fix="leave these tasks out, or run without chat",
        )


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ConfigurationError(f"api_key_env names {variable}, which is not set", fix=f"export {variable}")
    return os.environ[variable]


def _writable(folder: str | Path) -> Path:
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"results_dir {path} cannot be made: {error}", fix="choose another one") from error
    if not os.access(path, os.W_OK):
        raise ConfigurationError(f"results_dir {path} is not writable", fix="choose another one")
    return path


__all__ = ["EvalRun", "EvaluationFailed", "run_lm_eval", "run_reference_eval"]
