"""Parameters of the main flow: the form in the Prefect UI and the schema of its API."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, JsonValue, model_validator

from accuracy_core.schemas.base import Part, Schema
from accuracy_core.schemas.engine_spec import EngineSpec
from accuracy_core.schemas.module_parameters import ModuleParameters

Stage = Literal["preflight", "evaluate", "task_analysis", "prompt_analysis", "module_validation", "report"]
#: a level of its own, run when it is asked for
_ON_REQUEST = ("module_validation",)
ThresholdSpec = float | dict[str, float]


class EvalParameters(Part):
    """The task evaluation."""

    tasks: list[str] = Field(default_factory=lambda: ["assay_suite"], min_length=1, description="lm-eval task names")
    include_path: str | None = Field(None, description="directory with further task YAML files")
    limit: int | None = Field(None, ge=1, description="documents per task; empty: all of them")
    num_fewshot: int | None = Field(None, ge=0, description="few-shot examples; empty: the task's own number")
    chat: bool = Field(False, description="use the chat endpoint with the checkpoint's template")
    system_prompt: str | None = None
    num_concurrent: int = Field(8, ge=1, le=512, description="requests in flight")
    gen_kwargs: dict[str, JsonValue] = Field(default_factory=dict, description="generation arguments, e.g. temperature")
    request_timeout_s: float = Field(300, gt=0, description="time limit of one request")
    seed: int = 1234
    results: str | None = Field(None, description="analyse this existing lm-eval output instead of running one")
    reference_results: str | None = Field(None, description="lm-eval output of a trusted run, for paired tests")


class PreflightParameters(Part):
    """The checks of the set-up."""

    accept: list[str] = Field(
        default_factory=list,
        description="checks whose errors are meant so: they are shown as warnings and do not stop the run",
    )


class PromptParameters(Part):
    """The prompt analysis."""

    plugins: list[str] = Field(
        default_factory=lambda: ["logit_validation"],
        min_length=1,
        description="analyses to run: logit_validation, kv_cache, tensor_compare, engine_consistency (prefix cache, "
        "batching, chunked prefill); level 2 adds the last one by itself for an offline vLLM",
    )
    triage: bool = Field(
        True,
        description="when logits fail, compare KV cache and module tensors of the worst prompts and name a culprit",
    )
    modules: list[str] = Field(
        default_factory=list,
        description="modules for tensor_compare: model.layers.0-31, exact names, regular expressions; empty: all",
    )
    max_prompts: int = Field(3, ge=1, le=1000, description="deviated prompts to analyse, worst first")
    output_length: int = Field(16, ge=1, le=4096, description="tokens replayed per prompt")
    prompts: list[str] | None = Field(None, description="analyse these texts instead of deviated prompts")
    curated: bool = Field(False, description="analyse the curated prompts instead of deviated ones")
    tolerances: str | None = Field(
        None, description="limits to judge by: tolerances.toml, or a calibration.json of this model, dtype and device"
    )
    force_calibration: bool = Field(
        False, description="use a calibration of another model, dtype or device all the same; the report says so"
    )


class RunParameters(Schema):
    """One run of the accuracy debugger."""

    engine: EngineSpec = Field(default_factory=lambda: EngineSpec(model="embedded"))
    thresholds: dict[str, ThresholdSpec] = Field(
        default_factory=dict, description="`metric,filter` or `task/metric,filter` -> minimum, or a rule"
    )
    preflight: PreflightParameters = Field(default_factory=PreflightParameters)
    evaluation: EvalParameters = Field(default_factory=EvalParameters)
    prompt_analysis: PromptParameters = Field(default_factory=PromptParameters)
    module_validation: ModuleParameters = Field(default_factory=ModuleParameters)
    output_dir: str | None = Field(
        None, min_length=1, description="run directory, local or s3://; empty: runs/<model>-<time>"
    )
    stages: list[Stage] = Field(
        default_factory=lambda: [stage for stage in get_args(Stage) if stage not in _ON_REQUEST],
        description="stages to run; the others' files are taken from the run directory",
    )
    refresh: list[Stage] = Field(
        default_factory=list, description="stages to compute again even where an earlier run's result could be used"
    )
    server_port: int | None = Field(None, ge=1, le=65535, description="port of the server; empty: a free one")
    startup_timeout_s: float = Field(600, gt=0, description="longest wait for the engine to come up")
    device_timeout_s: float = Field(3600, ge=0, description="longest wait for the device cores")
    history_dir: str | None = Field(
        None, description="history of runs, local or s3://; empty: $ASSAY_HISTORY_DIR, else the cache"
    )
    goldens_dir: str | None = Field(None, description="root of the golden cache")

    @model_validator(mode="after")
    def _something_to_do(self) -> RunParameters:
        if not self.stages:
            raise ValueError("stages is empty: nothing to do")
        idle = [stage for stage in self.refresh if stage not in self.stages]
        if idle:
            raise ValueError(f"refresh names {', '.join(idle)}, which stages leaves out: add it there or drop it here")
        if self.prompt_analysis.prompts is not None and not self.prompt_analysis.prompts:
            raise ValueError("prompts is an empty list: give at least one prompt, or none at all for deviated ones")
        if self.prompt_analysis.prompts is not None and self.prompt_analysis.curated:
            raise ValueError("prompts and curated exclude each other: choose one")
        return self
