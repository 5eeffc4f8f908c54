"""Analyzers: who can read the results of which evaluation harness."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.evals.readers.normal_form import EvalResults
from accuracy_core.evals.readers.read import read_results
from accuracy_core.evals.readers.sample_table import SampleTable
from accuracy_core.schemas import ScoreRow

TaskResults = str | os.PathLike[str] | Mapping[str, Any]


class TaskAnalyzer(abc.ABC):
    """Reads one harness's results into the normal form. Subclasses register with `register_analyzer`."""

    name: ClassVar[str]

    @abc.abstractmethod
    def resolve_results_dir(self, input_task_results: TaskResults) -> Path | Mapping[str, Any]:
        """Where the results are: a path that exists, or the dict itself. Raises ConfigurationError."""

    @abc.abstractmethod
    def load(self, input_task_results: TaskResults) -> EvalResults:
        """Scores, samples and warnings. Raises ConfigurationError when there are no results."""

    def scores(self, results: EvalResults) -> list[ScoreRow]:
        return results.sheet.rows

    def samples(self, results: EvalResults) -> dict[str, SampleTable]:
        return results.samples


class LmEvalAnalyzer(TaskAnalyzer):
    """Results of lm-evaluation-harness since 0.3: a directory, a results file, or the dict of `simple_evaluate()`."""

    name = "lm_eval"

    def resolve_results_dir(self, input_task_results: TaskResults) -> Path | Mapping[str, Any]:
        if isinstance(input_task_results, Mapping):
            return input_task_results
        path = Path(input_task_results).expanduser()
        if not path.exists():
            raise ConfigurationError(
                f"task results {path} do not exist", fix="run the evaluation first, or give lm-eval's output directory"
            )
        return path

    def load(self, input_task_results: TaskResults) -> EvalResults:
        return read_results(self.resolve_results_dir(input_task_results))


class LongBenchAnalyzer(TaskAnalyzer):
    """LongBench runs as an evaluation; its own result format is not analysed, and is reported as not measured."""

    name = "longbench"

    def resolve_results_dir(self, input_task_results: TaskResults) -> Path | Mapping[str, Any]:
        raise NotMeasuredError(
            "LongBench results are not analysed",
            fix="run LongBench through lm-eval (preset longbench) and analyse that with LmEvalAnalyzer",
        )

    def load(self, input_task_results: TaskResults) -> EvalResults:
        self.resolve_results_dir(input_task_results)
        raise AssertionError("unreachable")


ANALYZER_REGISTRY: dict[str, type[TaskAnalyzer]] = {}


def register_analyzer(kind: type[TaskAnalyzer]) -> type[TaskAnalyzer]:
    """Make an analyzer available by its name; usable as a decorator.

    Raises ConfigurationError for a name that is taken.
    """
    if ANALYZER_REGISTRY.get(kind.name, kind) is not kind:
        raise ConfigurationError(f"an analyzer named {kind.name!r} is registered already")
    ANALYZER_REGISTRY[kind.name] = kind
    return kind


def get_analyzer(name: str) -> TaskAnalyzer:
    """Raises ConfigurationError for an unknown name."""
    if name not in ANALYZER_REGISTRY:
        raise ConfigurationError(f"no analyzer {name!r}", fix=f"there are: {', '.join(sorted(ANALYZER_REGISTRY))}")
    return ANALYZER_REGISTRY[name]()


register_analyzer(LmEvalAnalyzer)
register_analyzer(LongBenchAnalyzer)
