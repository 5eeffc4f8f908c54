"""The levels of a nightly: what each checks, and which flow does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from accuracy_core.prompts.evidence import CONSISTENCY, LOGITS
from accuracy_core.schemas import RunParameters

LevelName = Literal["accuracy", "logits", "modules"]


@dataclass(frozen=True)
class Level:
    """`flow` loads the flow; it takes `parameters` and `placement` as accuracy-debugger does.

    `deployment` is the one that runs it on a worker, `shape` makes a row's parameters fit the level.
    """

    number: int
    flow: Callable[[], Any]
    deployment: str
    shape: Callable[[RunParameters], RunParameters]


def _accuracy_debugger() -> Any:
    from flows.accuracy_debugger import accuracy_debugger

    return accuracy_debugger


def _module_validation() -> Any:
    from flows.module_validation import module_validation

    return module_validation


def _logit_regression() -> Any:
    from flows.logit_regression import logit_regression

    return logit_regression


def _as_given(parameters: RunParameters) -> RunParameters:
    return parameters


#: what level 2 runs where nobody chose: an engine that serves in several ways is also held against itself
_SERVING_PLUGINS = [LOGITS, CONSISTENCY]
_SERVING_ENGINES = ("vllm",)


def logits_alone(parameters: RunParameters) -> RunParameters:
    """No evaluation: the curated prompts, or the row's own ones, straight to the logits.

    Where the plugins were left at their default, an offline vLLM's consistency is checked, too.
    """
    prompts = parameters.prompt_analysis
    narrowed = _narrowed(parameters, ["preflight", "prompt_analysis", "report"])
    change: dict[str, Any] = {"curated": prompts.prompts is None}
    if "plugins" not in prompts.model_fields_set and parameters.engine.engine in _SERVING_ENGINES:
        change["plugins"] = _SERVING_PLUGINS
    return narrowed.model_copy(update={"prompt_analysis": prompts.model_copy(update=change)})


def modules_alone(parameters: RunParameters) -> RunParameters:
    """No evaluation and no prompts: modules on seeded inputs."""
    return _narrowed(parameters, ["preflight", "module_validation", "report"])


def _narrowed(parameters: RunParameters, stages: list[str]) -> RunParameters:
    refresh = [stage for stage in parameters.refresh if stage in stages]
    return parameters.model_copy(update={"stages": stages, "refresh": refresh})


#: a further level is one line here, and its name in `LevelName`
LEVELS: dict[LevelName, Level] = {
    "accuracy": Level(1, _accuracy_debugger, "accuracy-debugger/nightly", _as_given),
    "logits": Level(2, _logit_regression, "logit-regression/nightly", logits_alone),
    "modules": Level(3, _module_validation, "module-validation/nightly", modules_alone),
}
assert set(LEVELS) == set(get_args(LevelName))
