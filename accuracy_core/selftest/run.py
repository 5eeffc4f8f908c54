"""Running a plan through the product's own path: one loaded engine per architecture, faults put in and taken out."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.engines.registry import open_engine
from accuracy_core.errors import AssayError, InfrastructureError
from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.prompts.orchestrator import run_prompt_analysis
from accuracy_core.prompts.registry import PLUGIN_REGISTRY
from accuracy_core.schemas import EngineSpec, FaultSpec
from accuracy_core.selftest.document import CaseResult, SelftestReport
from accuracy_core.selftest.judging import judge
from accuracy_core.selftest.plan import BLOCK_SIZE, Case, EngineName, Plan, config_of
from accuracy_core.selftest.prompts import OUTPUT_LENGTH, selftest_prompts, tokenizer

#: plugins of a run, as far as this version has them
PLUGINS = ("logit_validation", "kv_cache", "tensor_compare")
Report = Callable[[CaseResult, int, int], None]


class FaultyEngine(TargetEngine, Protocol):
    """An engine whose fault can be changed while it is loaded."""

    def set_fault(self, fault: FaultSpec | None) -> None: ...


def spec_of(engine: EngineName, architecture: str, *, dtype: str = "bfloat16") -> EngineSpec:
    """The target of an architecture's runs, without a fault."""
    arguments: dict[str, Any] = {"block_size": BLOCK_SIZE} if engine == "vllm" else {}
    return EngineSpec.model_validate(
        {
            "engine": engine,
            "model": str(architecture_checkpoint(architecture)),
            "dtype": dtype,
            "max_model_len": 160,
            "engine_args": arguments,
        }
    )


def fault_spec(case: Case) -> FaultSpec | None:
    return None if case.fault is None else FaultSpec(name=case.fault, strength=case.strength)


def run_selftest(
    plan: Plan,
    *,
    work_dir: Path | None = None,
    quick: bool = False,
    plugins: Sequence[str] | None = None,
    known: Sequence[CaseResult] = (),
    on_case: Report = lambda case, done, total: None,
) -> SelftestReport:
    """Run every case of `plan`; those in `known` are taken from there. A case that cannot be run is recorded with its
    error and the others go on.

    Goldens are kept in `work_dir` (default: a temporary folder, removed at the end). `plugins`: default all of
    `PLUGINS` that there are. Raises ConfigurationError when an engine cannot be opened as asked.
    """
    start = time.monotonic()
    results = [result for result in known if not result.error and _case_of(result) in plan.cases]
    left = Plan(plan.engine, [case for case in plan.cases if case not in [_case_of(result) for result in results]])
    versions: dict[str, str] = {}
    steps = [name for name in plugins or PLUGINS if name in PLUGIN_REGISTRY]
    with _folder(work_dir) as folder:
        for name in left.architectures:
            spec = spec_of(plan.engine, name)
            for result in _run_architecture(left, name, spec, folder, steps, versions):
                results.append(result)
                on_case(result, len(results), len(plan.cases))
    return SelftestReport(
        engine=plan.engine,
        quick=quick,
        versions=versions,
        cases=results,
        skipped=plan.skipped,
        duration_s=round(time.monotonic() - start, 1),
    )


def _case_of(result: CaseResult) -> Case:
    """The case that a result with the fault's own strength is one of."""
    return Case(result.architecture, result.fault, result.seed)


def _run_architecture(
    plan: Plan, name: str, spec: EngineSpec, folder: Path, steps: Sequence[str], versions: dict[str, str]
) -> Iterator[CaseResult]:
    waiting = plan.of(name)
    while waiting:
        with open_engine(spec) as opened:
            versions.update(opened.capabilities.versions)
            while waiting:
                case = waiting.pop(0)
                result, alive = run_case(case, cast(FaultyEngine, opened), spec, folder, steps)
                yield result
                if not alive:  # the next cases get a new engine
                    break


def run_case(
    case: Case, engine: FaultyEngine, spec: EngineSpec, folder: Path, steps: Sequence[str]
) -> tuple[CaseResult, bool]:
    """One prompt analysis in the loaded `engine`, and whether the engine is still there afterwards."""
    start = time.monotonic()
    fault = fault_spec(case)
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    name: EngineName = "transformers" if spec.engine == "transformers" else "vllm"
    try:
        engine.set_fault(fault)
        done = run_prompt_analysis(
            spec.model_copy(update={"fault": fault}),
            selftest_prompts(case.seed),
            list(steps),
            run_dir,
            OUTPUT_LENGTH,
            tokenizer=tokenizer(),
            goldens_dir=folder / "goldens",
            engine=engine,
        )
        done.raise_if_broken()
        result = judge(case, done.status, config_of(case.architecture), name)
        alive = True
    except AssayError as error:
        result = CaseResult(
            architecture=case.architecture, fault=case.fault, seed=case.seed, detected=False, error=error.message
        )
        alive = not isinstance(error, InfrastructureError)
    return result.model_copy(update={"duration_s": round(time.monotonic() - start, 2)}), alive


@contextmanager
def _folder(work_dir: Path | None) -> Iterator[Path]:
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
        yield work_dir
        return
    temporary = Path(tempfile.mkdtemp(prefix="assay-selftest-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
