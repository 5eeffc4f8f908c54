"""Keys of cached stages: everything that may change a stage's result, and nothing that does not."""

from __future__ import annotations

import contextlib
import functools
import inspect
from pathlib import Path
from typing import Any

from accuracy_core.evals.readers.locate import locate
from accuracy_core.models.digests import file_digest
from accuracy_core.paths import cache_root
from accuracy_core.pipeline.evaluation import results_location
from accuracy_core.pipeline.identity import code_identity, engine_identity
from accuracy_core.pipeline.limits import limits_for
from accuracy_core.pipeline.prompt_stage import choose_prompts
from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.tokens import load_tokenizer
from accuracy_core.schemas import fingerprint

#: raised when the meaning of a stage's files changes
_VERSION = 1
#: parameters of the evaluation that only say how long to wait, or where results come from
_EVALUATION_WITHOUT = {"results", "reference_results", "request_timeout_s", "include_path"}
#: parameters of the prompt analysis that enter by their content instead
_PROMPTS_WITHOUT = {"prompts", "max_prompts", "tolerances"}
#: a folder with one of these, named by an engine argument, is read by the engine: a draft model, an adapter, defaults
_READ_FOLDERS = ("config.json", "adapter_config.json", "generation_config.json")


def preflight_key(run: Run) -> str:
    """Key of the preflight's first part: target, tokenizer, chat or not, the checks, and what is accepted."""
    return _key("preflight", run, chat=run.parameters.evaluation.chat, **_preflight_inputs(run))


def preflight_requests_key(run: Run) -> str:
    """Key of the preflight's second part: as the first, and the bytes of the results.

    Raises ConfigurationError when there are no results.
    """
    return _key("preflight_requests", run, results=_results_digests(results_location(run)), **_preflight_inputs(run))


def evaluation_key(run: Run) -> str:
    """Key of the evaluation: target, tasks and their files, request settings, engine's installation, device, code.

    Thresholds are not in it: other thresholds judge the same answers.
    """
    evaluation = run.parameters.evaluation
    return _key(
        "evaluate",
        run,
        engine=engine_identity(run.parameters.engine),
        model_name=run.model_name,
        evaluation=evaluation.model_dump(mode="json", exclude=_EVALUATION_WITHOUT),
        task_files=_folder_digests(evaluation.include_path),
    )


def task_analysis_key(run: Run) -> str:
    """Key of the task analysis: the bytes of the results and of the reference's, and the thresholds."""
    return _key(
        "task_analysis",
        run,
        results=_results_digests(results_location(run)),
        reference=_results_digests(run.parameters.evaluation.reference_results),
        thresholds=dict(run.parameters.thresholds),
    )


def prompt_analysis_key(run: Run) -> str:
    """Key of the prompt analysis: target, token ids of the prompts, plugins and their code, tolerances, engine, device.

    Raises ConfigurationError for prompts that cannot be replayed.
    """
    parameters = run.parameters.prompt_analysis
    limits = limits_for(parameters, run.parameters.engine, run.model_fingerprint)
    prompts, _ = choose_prompts(run, _TokenizerWhenNeeded(run))
    return _key(
        "prompt_analysis",
        run,
        engine=engine_identity(run.parameters.engine),
        prompts=prompts.model_dump(mode="json"),
        parameters=parameters.model_dump(mode="json", exclude=_PROMPTS_WITHOUT),
        plugins=_plugin_digests(parameters.plugins),
        tolerances=limits.tolerances.to_json() if limits is not None else "default",  # the default is part of our code
    )


def module_validation_key(run: Run) -> str:
    """Key of the module validation: target, what is fed, limits, engine, device, code."""
    limits = limits_for(run.parameters.prompt_analysis, run.parameters.engine, run.model_fingerprint)
    return _key(
        "module_validation",
        run,
        engine=engine_identity(run.parameters.engine),
        parameters=run.parameters.module_validation.model_dump(mode="json"),
        tolerances=limits.tolerances.to_json() if limits is not None else "default",
    )


class _TokenizerWhenNeeded:
    """Loads the tokenizer at its first use. Most deviated prompts bring their ids along: loading costs seconds."""

    def __init__(self, run: Run) -> None:
        self._load = functools.cache(lambda: load_tokenizer(run.model_path, run.parameters.engine.tokenizer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._load()(*arguments, **options)


def _key(stage: str, run: Run, **inputs: Any) -> str:
    tokenizer = _folder_digests(run.tokenizer) if run.tokenizer != run.model_path else {}
    own = {"stage": stage, "version": _VERSION, "target": run.target_identity, "code": code_identity()}
    named = _named_digests(run.parameters.engine.engine_args)
    return fingerprint({**own, "tokenizer": tokenizer, "named": named, **inputs})


def _named_digests(value: Any) -> dict[str, Any]:
    """Path -> digests, for files and folders that engine arguments name: a chat template at a path may be edited.

    `value`: the arguments, or any part of them.
    """
    if isinstance(value, str):
        return {value: found} if value and (found := _content(Path(value).expanduser())) else {}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {path: found for part in parts for path, found in _named_digests(part).items()}


def _content(path: Path) -> str | dict[str, str]:
    """Digests of a file, or of a folder that an engine reads; nothing for any other: it may hold all the models."""
    with contextlib.suppress(OSError, ValueError):  # text that is no path, or one too long to be one
        if path.is_file():
            return _digest(path)
        if any((path / name).is_file() for name in _READ_FOLDERS):
            return _folder_digests(str(path))
    return {}


def _folder_digests(folder: str | None) -> dict[str, str]:
    """Relative path -> sha256 of every file below `folder`; a name that is no folder stands for itself."""
    if folder is None:
        return {}
    root = Path(folder).expanduser()
    if not root.is_dir():
        return {"name": folder}
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(root).as_posix(): _digest(path) for path in files}


def _results_digests(location: str | None) -> dict[str, str]:
    if location is None:
        return {}
    found = locate(Path(location).expanduser())
    files = [*filter(None, (found.results, found.requests)), *found.samples]
    return {f"{path.parent.name}/{path.name}": _digest(path) for path in files}


def _plugin_digests(names: list[str]) -> dict[str, str]:
    """Plugins that others registered are code, too."""
    from accuracy_core.prompts import make_plugins

    files = {plugin.name: inspect.getsourcefile(type(plugin)) for plugin in make_plugins(names)}
    return {name: _digest(Path(file)) if file else "" for name, file in files.items()}


def _preflight_inputs(run: Run) -> dict[str, Any]:
    """Checks that others registered are code, too."""
    from accuracy_core.prompts.preflight import PREFLIGHT_CHECKS

    files = {name: inspect.getsourcefile(check.run) for name, check in PREFLIGHT_CHECKS.items()}
    checks = {name: _digest(Path(file)) if file else "" for name, file in files.items()}
    return {"accept": sorted(run.parameters.preflight.accept), "checks": checks}


def _digest(path: Path) -> str:
    return file_digest(path, cache_root() / "digests")
