"""The plugin on vLLM, one engine for all: clean passes, and each fault of serving is found by exactly its own check."""

from __future__ import annotations

import contextlib

import pytest

from accuracy_core.engines.interpreter import check_interpreter, find_interpreter
from accuracy_core.engines.registry import open_engine
from accuracy_core.errors import AssayError
from accuracy_core.outcome import Verdict
from accuracy_core.prompts import conclude, run_prompt_analysis
from accuracy_core.prompts.plugins.engine_consistency import EngineConsistencyPlugin, with_prefix_cache
from accuracy_core.schemas import ConsistencyResult, EngineSpec, FaultSpec, RunDir

pytestmark = pytest.mark.slow

SPEC = EngineSpec(model="embedded", max_model_len=128)
#: two blocks of the cache, a block and a bit, less than a block
PROMPTS = [
    "Q: 47+38\nA: 85\nQ: 91-27\nA: 64\nQ: 12+12\nA: 24\nQ: 3+99\nA: 102\nQ: 5+6\nA:",
    "Q: 3+99\nA: 102\nQ: 47+38\nA: 85\nQ: 5+6\nA:",
    "Q:",
]
#: fault -> its check, and how its finding begins
FAULTS = {
    "stale-prefix-hit": ("prefix_cache", "prefix caching changes the logits: prompt "),
    "batch-dependent": ("batching", "batching changes the logits: prompt "),
    "chunk-boundary": ("chunked_prefill", "chunked prefill changes the logits: prompt "),
}


@pytest.fixture(scope="module")
def engine():
    try:
        check_interpreter(find_interpreter())
    except AssayError as error:
        pytest.skip(f"no engine interpreter: {error}")
    with open_engine(with_prefix_cache(SPEC)) as opened:
        yield opened


@pytest.fixture(scope="module")
def goldens_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("goldens")


def analyse(output, engine, goldens_dir, fault: str | None = None):
    chosen = FaultSpec(name=fault) if fault else None
    engine.set_fault(chosen)
    result = run_prompt_analysis(
        SPEC.model_copy(update={"fault": chosen}), PROMPTS, [EngineConsistencyPlugin()], output, output_length=8,
        engine_factory=lambda spec: contextlib.nullcontext(engine), goldens_dir=goldens_dir,
    )  # fmt: skip
    run = RunDir.at(output)
    return result, run.read(run.consistency_json, ConsistencyResult)


def test_clean_passes_all_three_and_each_took_place(tmp_path, engine, goldens_dir):
    result, found = analyse(tmp_path, engine, goldens_dir)
    assert result.passed, found
    measured = {check.kind.value: [rows.index for rows in check.prompts] for check in found.checks}
    assert measured == {
        "repeat": [0, 1, 2], "prefix_cache": [0, 1], "batching": [0, 1, 2], "chunked_prefill": [0, 1],
    }  # fmt: skip
    assert {check.yardstick for check in found.checks} == {"dtype_noise"}
    prefix, batch, chunked = found.checks[1:]
    assert [rows.conduct.cached_tokens for rows in prefix.prompts] == [64, 32]
    assert {rows.conduct.largest_batch for rows in batch.prompts} == {3}
    assert all(max(rows.conduct.prefill_chunks) == 24 for rows in chunked.prompts)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_exactly_its_own_check(tmp_path, engine, goldens_dir, fault):
    kind, begins = FAULTS[fault]
    result, found = analyse(tmp_path, engine, goldens_dir, fault)
    assert [check.kind.value for check in found.checks if check.verdict is not Verdict.PASS] == [kind]
    assert [check.kind.value for check in found.failed] == [kind]
    decided = conclude(None, result.status, skipped=["evaluate", "task_analysis"])
    assert decided.headline.startswith(f"numerics fail: {begins}")
    assert "to confirm" in decided.fix
