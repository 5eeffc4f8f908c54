"""A run that was checked: everything that can be wrong with the parameters is found before anything expensive."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.pipeline.defaults import EMBEDDED, default_thresholds
from accuracy_core.pipeline.limits import limits_for
from accuracy_core.pipeline.mirror import synchronised, working_dir
from accuracy_core.pipeline.module_checks import check_module_validation
from accuracy_core.pipeline.stages import PARTS
from accuracy_core.pipeline.versions import versions
from accuracy_core.schemas import EngineSpec, Finding, RunDir, RunParameters, Schema

if TYPE_CHECKING:
    from accuracy_core.schemas.run_dir import AnyPath


class Run(Schema):
    """`run_config.json`: parameters as given (values of `env` replaced), and what they resolved to."""

    parameters: RunParameters
    model_path: str
    model_name: str = Field(description="name for display, and of the folder under eval_results")
    model_fingerprint: str
    target_identity: str = Field(description="sha256 over model content, engine spec and fault")
    versions: dict[str, str] = Field(default_factory=dict)
    findings: list[Finding] = Field(default_factory=list, description="what the report must say about the set-up")

    @property
    def run_dir(self) -> RunDir:
        """Where this process reads and writes; for a run on S3 the local copy, see `accuracy_core.pipeline.mirror`."""
        if self.parameters.output_dir is None:
            raise ConfigurationError("the run has no output directory", fix="make runs with resolve_run")
        return working_dir(self.parameters.output_dir)

    @property
    def location(self) -> str:
        """The run directory as people and other hosts know it: an absolute path, or `s3://…`."""
        return str(RunDir.at(self.parameters.output_dir or "").root)

    @property
    def engine(self) -> EngineSpec:
        """The engine's spec with the model resolved to a folder."""
        return self.parameters.engine.model_copy(update={"model": self.model_path})

    @property
    def tokenizer(self) -> str:
        return self.parameters.engine.tokenizer or self.model_path

    def redacted(self) -> Run:
        """A copy without secrets, for disk."""
        parameters = self.parameters.model_copy(update={"engine": self.parameters.engine.redacted()})
        return self.model_copy(update={"parameters": parameters})


def resolve_run(parameters: RunParameters, *, engine_here: bool = True) -> Run:
    """Check `parameters`. Creates the run directory and writes nothing into it.

    `engine_here` False leaves out what only the host of the engine can tell: its cores, its interpreter, its ports.

    Raises ConfigurationError for: a missing model or one without a tokenizer, a prompt that is too long, an unknown
    task, a threshold on a metric that does not exist, results that are not there, an unknown plugin or fault, a module
    that the model does not have, a
    calibration of another target, no engine interpreter, a port that is taken, an output directory that cannot be
    written, a stage whose input is missing, a directory that holds stages of another target.
    """
    from accuracy_core.models import model_fingerprint, resolve_model

    model_path = str(resolve_model(parameters.engine.model, need_tokenizer=parameters.engine.tokenizer is None))
    own = parameters.evaluation.results is None  # other results may be of other tasks, even of another model
    if parameters.engine.model == EMBEDDED and own and not parameters.thresholds:
        parameters = parameters.model_copy(update={"thresholds": default_thresholds(parameters.evaluation)})
    _check_plugins(parameters)
    _check_accepted(parameters)
    if engine_here:
        _check_engine(parameters)
    _check_prompts(parameters, model_path)
    _check_modules(parameters, model_path)
    if "module_validation" in parameters.stages:
        check_module_validation(parameters, model_path)
    if "evaluate" in parameters.stages and parameters.evaluation.results is None:
        _check_evaluation(parameters, engine_here)
    _check_results(parameters)
    content = model_fingerprint(model_path)
    limits = limits_for(parameters.prompt_analysis, parameters.engine, content, engine_here=engine_here)
    parameters = with_output_dir(parameters)
    location = parameters.output_dir or ""
    RunDir.at(location).create()
    with synchronised(location):
        run_dir = working_dir(location)
    _check_earlier_stages(parameters, run_dir)
    run = Run(
        parameters=parameters,
        model_path=model_path,
        model_name=Path(model_path).name,
        model_fingerprint=content,
        target_identity=parameters.engine.identity(content),
        versions=versions(),
        findings=list(limits.findings) if limits is not None else [],
    )
    _check_target(run)
    return run


def record(run: Run) -> None:
    """Write `run_config.json`, without secrets; forget what earlier runs said about the stages of this one.

    Their records would be taken for this run's when it ends early, and whose is newer no clock can tell.
    """
    stages = [*run.parameters.stages, *(part for part, stage in PARTS.items() if stage in run.parameters.stages)]
    with synchronised(run.parameters.output_dir):
        for stage in stages:
            (run.run_dir.stages / f"{stage}.json").unlink(missing_ok=True)
        run.run_dir.write(run.run_dir.run_config, run.redacted())


def with_output_dir(parameters: RunParameters) -> RunParameters:
    """`parameters` with a directory of its own when none was chosen: `runs/<model>-<time>`."""
    if parameters.output_dir is not None:
        return parameters
    model = parameters.engine.model.rstrip("/").rsplit("/", 1)[-1]
    return parameters.model_copy(update={"output_dir": f"runs/{model}-{datetime.now(UTC):%Y%m%d-%H%M%S}"})


def _check_plugins(parameters: RunParameters) -> None:
    from accuracy_core.prompts import PLUGIN_REGISTRY

    unknown = sorted(set(parameters.prompt_analysis.plugins) - set(PLUGIN_REGISTRY))
    if unknown:
        raise ConfigurationError(
            f"unknown prompt plugin: {', '.join(unknown)}", fix=f"known plugins: {', '.join(sorted(PLUGIN_REGISTRY))}"
        )


def _check_accepted(parameters: RunParameters) -> None:
    from accuracy_core.prompts.preflight import require_known

    require_known(parameters.preflight.accept)


def _check_prompts(parameters: RunParameters, model_path: str) -> None:
    given, length = parameters.prompt_analysis.prompts, parameters.prompt_analysis.output_length
    if "prompt_analysis" not in parameters.stages:
        return
    from accuracy_core.prompts import prepare_prompts
    from accuracy_core.prompts.orchestrator import context_length

    limit = parameters.engine.max_model_len or context_length(parameters.engine)
    if limit is not None and length >= limit:
        raise ConfigurationError(
            f"{length} tokens per prompt leave no room for a prompt in a context of {limit}",
            fix="lower --output-length or raise --max-model-len",
        )
    if given is None:
        return
    from accuracy_core.prompts.tokens import load_tokenizer

    prepare_prompts(
        list(given),
        load_tokenizer(model_path, parameters.engine.tokenizer),
        output_length=length,
        max_model_len=limit,
    )


def _check_modules(parameters: RunParameters, model_path: str) -> None:
    """Patterns of modules against the model's, built without weights: a typo would show after the evaluation only."""
    patterns = parameters.prompt_analysis.modules
    if not patterns or "prompt_analysis" not in parameters.stages:
        return
    from accuracy_core.capture.patterns import select_taps
    from accuracy_core.capture.reference import reference_taps
    from accuracy_core.goldens.reference_config import load_config

    engine = parameters.engine
    config = load_config(model_path, None, engine.hf_overrides or None, trust_remote_code=engine.trust_remote_code)
    select_taps(patterns, reference_taps(config, trust_remote_code=engine.trust_remote_code).available)


def _check_engine(parameters: RunParameters) -> None:
    from accuracy_core.engines.registry import check_spec

    check_spec(parameters.engine)


def _check_evaluation(parameters: RunParameters, engine_here: bool) -> None:
    from accuracy_core.engines.registry import engine_kind
    from accuracy_core.evals.preconditions import check_tasks, check_thresholds

    if not engine_kind(parameters.engine.engine).has_server:
        raise NotMeasuredError(
            f"engine {parameters.engine.engine!r} has no server: task evaluation cannot be measured with it",
            fix="use --engine vllm, or pass existing lm-eval results with --results",
        )
    tasks, include = parameters.evaluation.tasks, parameters.evaluation.include_path
    check_tasks(tasks, include)
    check_thresholds(parameters.thresholds, tasks, include)
    if parameters.server_port is not None and engine_here:
        _check_port(parameters.server_port)


def _check_results(parameters: RunParameters) -> None:
    if "task_analysis" not in parameters.stages:
        return
    from accuracy_core.evals.readers.locate import locate
    from accuracy_core.evals.thresholds import parse_rule

    for key, value in parameters.thresholds.items():
        parse_rule(key, value)
    for given in (parameters.evaluation.results, parameters.evaluation.reference_results):
        if given is not None:
            locate(Path(given).expanduser())


def _check_earlier_stages(parameters: RunParameters, run_dir: RunDir) -> None:
    """What a stage needs from one that is not part of this run must lie in the run directory."""
    stages = parameters.stages
    if "task_analysis" in stages and "evaluate" not in stages and parameters.evaluation.results is None:
        _check_there(run_dir.eval_results, "evaluation", "add --stage evaluate, or give --results")
    given = parameters.prompt_analysis.prompts is not None or parameters.prompt_analysis.curated
    if "prompt_analysis" in stages and "task_analysis" not in stages and not given:
        fix = "add --stage task_analysis, or give prompts with --prompt"
        _check_there(run_dir.deviated_prompts, "deviated prompts", fix)


def _check_target(run: Run) -> None:
    """A run of some stages must not mix its results with those of another model, engine or fault."""
    left_out = {"evaluate", "task_analysis", "prompt_analysis", "module_validation"} - set(run.parameters.stages)
    if not left_out or not run.run_dir.run_config.exists():
        return
    before = run.run_dir.read(run.run_dir.run_config, Run)
    if before.target_identity != run.target_identity:
        raise ConfigurationError(
            f"{run.run_dir.root} holds a run of another target: {before.model_name} with other content or settings",
            fix="give the parameters of that run, or choose another --output directory",
        )


def _check_there(path: AnyPath, what: str, fix: str) -> None:
    if not path.exists():
        raise ConfigurationError(f"there is no {path}: no {what} to analyse", fix=fix)


def _check_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on 127.0.0.1 is taken: {error}",
                fix="choose another --port, or leave it out for a free one",
            ) from error
