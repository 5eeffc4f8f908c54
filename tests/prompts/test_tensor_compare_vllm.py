"""Module tensors of a real vLLM engine: names, clean ratios, a fault, through one engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accuracy_core import TensorComparePlugin
from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Verdict
from accuracy_core.prompts import PluginContext
from accuracy_core.prompts.prepared import PreparedPrompt
from accuracy_core.schemas import EngineSpec, FaultSpec, RunDir

pytestmark = pytest.mark.slow

PROMPTS = [list(range(40, 80)), [5, 77, 130, 9, 9, 201, 44, 18, 3, 250]]
SPEC = EngineSpec(model="embedded", dtype="bfloat16", max_model_len=128)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from accuracy_core.engines.interpreter import find_interpreter

    try:
        find_interpreter(SPEC)
    except ConfigurationError as error:
        pytest.skip(f"no engine environment: {error}")
    with OfflineVllmEngine(SPEC) as opened:
        yield opened


def _run(engine: Any, tmp_path: Path) -> dict[str, Any]:
    ctx = PluginContext(
        checkpoint="embedded",
        prompts=tuple(map(tuple, PROMPTS)),
        prepared=tuple(PreparedPrompt(index=i, token_ids=ids, source="token_ids") for i, ids in enumerate(PROMPTS)),
        server_config=SPEC,
        output_length=12,
        output_dir=RunDir.at(tmp_path / "run").create(),
        dtype="bfloat16",
    )
    plugin = TensorComparePlugin(goldens_dir=tmp_path / "goldens", save_captures=False)
    plugin.pre_llm(ctx)
    return plugin.run(replace(ctx, engine=engine))


def test_the_clean_embedded_model_is_within_the_calibrated_band_at_every_tap(engine: Any, tmp_path: Path) -> None:
    results = _run(engine, tmp_path)
    assert results["passed"] is True
    rows = [row for result in results["tensor_results"] for row in result.modules]
    assert all(row.verdict is Verdict.PASS for row in rows)
    assert not any(result.missing for result in results["tensor_results"])
    taps = {row.module for row in rows}
    assert {"model.embed_tokens", "model.layers.0.self_attn.attn", "model.layers.0", "model.norm", "lm_head"} <= taps
    measured = [row.local_ratio for row in rows if row.local_ratio == row.local_ratio]
    assert len(measured) == len(rows)
    assert max(measured) < 2.3


def test_a_fault_in_the_engine_is_found_where_it_is(engine: Any, tmp_path: Path) -> None:
    engine.set_fault(FaultSpec(name="mlp-scale", layer=1))
    try:
        results = _run(engine, tmp_path)
    finally:
        engine.set_fault(None)
    assert results["passed"] is False
    assert results["culprit"].layer == 1
    assert results["culprit"].module in ("model.layers.1.mlp.down_proj", "model.layers.1.mlp")
