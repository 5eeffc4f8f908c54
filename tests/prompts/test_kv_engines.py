"""KvCachePlugin on real engines: clean caches pass, faults of the cache are told from faults before it."""

from __future__ import annotations

import random

import pytest

from accuracy_core import KvCachePlugin, run_prompt_analysis
from accuracy_core.engines.interpreter import check_interpreter, find_interpreter
from accuracy_core.errors import AssayError
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import EngineSpec, FaultSpec, KvPattern, KvResult, Phase, RunDir

pytestmark = pytest.mark.slow


def _prompts():
    rng = random.Random(3)
    return [[0, *(rng.randrange(4, 255) for _ in range(count))] for count in (5, 40)]


@pytest.fixture(scope="module")
def goldens_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("goldens")


def analyse(output, goldens_dir, engine, fault=None):
    spec = EngineSpec(
        model="embedded", engine=engine, max_model_len=128, fault=FaultSpec(name=fault) if fault else None
    )
    result = run_prompt_analysis(
        spec, _prompts(), [KvCachePlugin(goldens_dir=goldens_dir)], output, output_length=20, goldens_dir=goldens_dir,
        triage=False,
    )  # fmt: skip
    run = RunDir.at(output)
    return result, [KvResult.from_json(run.prompt_result(i, "kv_cache").read_text()) for i in range(2)]


CASES = [
    (None, KvPattern.NONE, None, None, Phase.NONE),
    ("kv-slot", KvPattern.SHIFTED, 1, True, Phase.DECODE),
    ("kv-scale", KvPattern.SCALE, 1, True, Phase.BOTH),
    ("mlp-scale", KvPattern.SPREAD, 2, False, Phase.BOTH),
]


@pytest.mark.parametrize(("fault", "pattern", "layer", "cache", "phase"), CASES, ids=lambda x: str(x))
def test_transformers(tmp_path, goldens_dir, fault, pattern, layer, cache, phase):
    result, found = analyse(tmp_path, goldens_dir, "transformers", fault)
    assert result.verdict is (Verdict.FAIL if fault else Verdict.PASS)
    for one in found:
        assert (one.pattern, one.cache_fault, one.phase) == (pattern, cache, phase)
        assert (one.first_bad.layer if one.first_bad else None) == layer
        assert one.written is (cache is not True)
    if cache:
        assert result.status.culprit.layer == layer


def test_vllm_writes_one_slot_too_far(tmp_path, goldens_dir):
    """One start of the engine: the shifted layer fails in decode, and the layer before it, which is clean, passes."""
    try:
        check_interpreter(find_interpreter())
    except AssayError as error:
        pytest.skip(f"no engine interpreter: {error}")
    result, found = analyse(tmp_path, goldens_dir, "vllm", "kv-slot")
    assert result.verdict is Verdict.FAIL
    for one in found:
        assert (one.pattern, one.cache_fault, one.phase, one.written) == (KvPattern.SHIFTED, True, Phase.DECODE, False)
        assert one.first_bad.layer == 1
        assert one.first_bad.position == one.prompt_length
        assert {head.verdict for head in one.heads if head.layer == 0} == {Verdict.PASS}
        assert one.block_size
