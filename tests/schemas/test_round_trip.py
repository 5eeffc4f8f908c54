"""Every shared document: round trip, NaN and infinities survive, newer versions and unknown fields are refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from accuracy_core import schemas
from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.schemas import (
    Aggregate,
    CallSnapshot,
    CaptureSpec,
    ComparisonSummary,
    ConsistencyCheck,
    ConsistencyKind,
    ConsistencyResult,
    ConsistencyRows,
    Culprit,
    DeviatedPrompt,
    DeviatedPrompts,
    DivergentModule,
    EngineSpec,
    EvalParameters,
    FaultSpec,
    Finding,
    GuardHit,
    Guards,
    KvHeadMetrics,
    KvPattern,
    KvPlace,
    KvResult,
    ModuleCheck,
    ModuleMetrics,
    ModuleValidationResult,
    PairedTest,
    Part,
    Phase,
    PluginStatus,
    PromptAnalysisStatus,
    PromptParameters,
    PromptResult,
    ReplayRequest,
    ReplayResult,
    ResultsSummary,
    RouteResult,
    RowMetrics,
    RunParameters,
    SampleRecord,
    Schema,
    ScoreRow,
    Severity,
    StageRecord,
    TaskStatus,
    TensorCompareResult,
    ThresholdResult,
    Tolerances,
)

NAN, INF = math.nan, math.inf
GUARD = GuardHit(guard="l2_ratio", prompt=0, token=3, value=INF, limit=1.5, detail="é \ud7ff <b>")
ROUTE = RouteResult(route="two_way", passed=None, value=NAN, threshold=1.0)
ROW = RowMetrics(
    prompt=0, token=1, topk_error={"5": NAN, "all": 0.5}, two_way_passed=False, reference_id=1, expected_id=1,
    target_id=2, kl=-INF, expected_top2=[2.0, NAN], guards=[GUARD],
)  # fmt: skip
SAMPLE = SampleRecord(
    task="t", doc_id=1, filter="none", right=None, prompt="p", target="x", response=["y"], metrics={"acc": NAN}
)
DEVIATED = DeviatedPrompt(
    task="t", doc_id=1, prompt="p", kind="chat", messages=[{"role": "user", "content": "q"}], token_ids=[0, 5],
    metrics={"exact_match": NAN},
)  # fmt: skip
MODULE = ModuleMetrics(module="model.norm", order=3, phase=Phase.DECODE, rows=2, l2=INF)
DIVERGENT = DivergentModule(module="model.norm", phase=Phase.BOTH, ratio=INF, local=True)

#: one instance of every document, with non-finite numbers wherever a float may stand
DOCUMENTS: list[Schema] = [
    Culprit(phase=Phase.DECODE, module="attention", layer=3, head=1, position=17, evidence=["row 4"], confirmed=None),
    DeviatedPrompts(mode="with_reference", prompts=[DEVIATED], model_errors=[DEVIATED], note="n"),
    EngineSpec(model="embedded", fault=FaultSpec(name="mlp-scale", strength=NAN), engine_args={"x": [1, None]}),
    FaultSpec(name="kv-slot", layer=1, strength=INF, position=4, params={"k": "v"}),
    Finding(check="bos", severity=Severity.ERROR, evidence="two BOS", fix="drop one", outcome=Outcome.CONFIGURATION),
    KvResult(
        index=0, heads=[KvHeadMetrics(layer=0, head=1, which="key", linf=INF)], pattern=KvPattern.ONE_SLOT,
        first_bad=KvPlace(layer=0, which="value"), position_ratio={"key": [[NAN, 1.0]]},
    ),
    ComparisonSummary(max_l2_ratio=3, target="cpu", modules=[MODULE], first_divergent=DIVERGENT, prompts={"0": None}),
    ConsistencyResult(
        target="vllm", dtype="bfloat16", output_length=2, prefill_chunk=24, added=["long"],
        checks=[ConsistencyCheck(
            kind=ConsistencyKind.BATCHING, verdict=Verdict.FAIL, pooled=NAN, limits={"row": 12.0},
            left_out={"p": "short"},
            prompts=[ConsistencyRows(tokens=2, bit_equal=False, row=INF, verdict=Verdict.FAIL, reasons=["not finite"])],
        )],
    ),
    ModuleValidationResult(
        target="vllm", dtype="bfloat16", seeds=1, prefill=2, decode=3,
        checks=[ModuleCheck(kind="mlp", layer=1, phase="decode", verdict=Verdict.FAIL, bc=NAN, sigma_ratio=INF)],
    ),
    TensorCompareResult(index=0, modules=[MODULE], first_divergent=DIVERGENT, progression={"model.layers.0": [NAN]}),
    PromptAnalysisStatus(
        verdict=Verdict.SUSPECT, n_prompts=1, culprit=Culprit(phase=Phase.BOTH),
        plugins={"logit_validation": PluginStatus(
            plugin="logit_validation", verdict=None, worst=GUARD, routes=[ROUTE], aggregates={"bc": NAN},
            per_prompt={"0": Verdict.FAIL, "1": None}, errors={"1": "engine died"})},
        findings=[Finding(check="c", severity=Severity.INFO, evidence="e")],
    ),
    PromptResult(
        index=0, plugin="logit_validation", verdict=Verdict.FAIL, rows=[ROW], guards=[GUARD], routes=[ROUTE],
        aggregates={"sigma_ratio": NAN}, first_bad_token=None,
    ),
    ReplayRequest(request_id="p0", prompt_token_ids=[0, 1], forced_token_ids=[2], capture=CaptureSpec(kv=True)),
    ReplayResult(request_id="p0", token_ids=[2], argmax_ids=[2], tensors="x.safetensors", names=["logits"]),
    ResultsSummary(deviating=[SAMPLE], n_deviating=1),
    RunParameters(
        thresholds={"exact_match,strict": 0.5, "acc,none": {"mean": 0.5, "std": INF}},
        evaluation=EvalParameters(tasks=["a"], gen_kwargs={"temperature": 0}),
        prompt_analysis=PromptParameters(prompts=["p"]), stages=["report"],
    ),
    CallSnapshot(
        request_id="p0", engine="vllm", call=2, first_position=4, tokens=1, prompt_length=4, batch_tokens=1,
        token_ids=[7], prefix_token_ids=[1, 2, 3, 4], row=1, tensors="p0-call2.safetensors", block_size=16,
        attention={"0": {"max_seq_len": 5, "causal": True}}, missing={"kv.0.key": "why"},
    ),
    StageRecord(stage="evaluate", inputs_hash="0" * 64, started=datetime(2026, 1, 2, tzinfo=UTC), duration_s=INF),
    TaskStatus(
        passed=None, scores=[ScoreRow(key="t/acc,none", task="t", metric="acc", filter="none", value=NAN)],
        thresholds=[ThresholdResult(given_key="acc", passed=False, bound=-INF)],
        paired=[PairedTest(
            key="k", n=1, n_worse=1, n_better=0, difference=NAN, ci_low=-INF, ci_high=INF, mcnemar_p=1.0)],
    ),
    Tolerances(
        top_k={"5": (1e-5, 0.011), "all": (1e-5, 0.05)}, n_ulps=2,
        aggregate=Aggregate(sigma_ratio=1, bc=0.99, linf_ratio=1.5, l2_ratio=1.5, bc_min_samples=10),
        guards=Guards(l2_ratio=2, linf_ratio=2, flip_noise_multiple=4, flip_noise_quantile=0.999),
        extra={"x": 1.5}, provenance={"source": "hand"},
    ),
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(a, BaseModel):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in type(a).model_fields)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def of_type(name: str) -> type[Schema]:
    return type(next(document for document in DOCUMENTS if type(document).__name__ == name))


by_name = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: type(document).__name__)


def test_the_comparison_itself_sees_differences() -> None:
    assert same([NAN, {"a": (1.0, INF)}], [NAN, {"a": (1.0, INF)}])
    assert not same([NAN], [0.0])
    assert not same({"a": INF}, {"a": -INF})
    assert not same(DOCUMENTS[0], DOCUMENTS[1])


def test_every_exported_document_is_covered() -> None:
    exported = {
        value.__name__
        for value in vars(schemas).values()
        if isinstance(value, type) and issubclass(value, Schema) and value is not Schema
    }
    assert exported == {type(document).__name__ for document in DOCUMENTS}


@by_name
def test_round_trip_keeps_every_value(document: Schema) -> None:
    text = document.to_json()
    again = type(document).from_json(text)
    assert same(document, again)
    assert again.to_json() == text


@by_name
def test_json_is_strict_and_versioned(document: Schema) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(document.to_json(), parse_constant=refuse)
    assert content["schema_version"] == type(document).SCHEMA_VERSION


@by_name
@pytest.mark.parametrize("version", [0, -1, 2**31, "1", None])
def test_other_versions_are_refused(document: Schema, version: object) -> None:
    content = {**json.loads(document.to_json()), "schema_version": version}
    with pytest.raises(ConfigurationError, match="schema version") as caught:
        type(document).from_json(json.dumps(content), source="the-file.json")
    assert "the-file.json" in caught.value.message
    assert caught.value.fix


@by_name
def test_unknown_fields_are_refused(document: Schema) -> None:
    content = {**json.loads(document.to_json()), "treshold": 1}
    with pytest.raises(ConfigurationError, match="treshold"):
        type(document).from_json(json.dumps(content))


@by_name
def test_documents_cannot_be_changed(document: Schema) -> None:
    field = next(iter(type(document).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(document, field, getattr(document, field))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"schema_version": 1}'])
@pytest.mark.parametrize("name", ["PromptResult", "TaskStatus", "ReplayRequest"])
def test_what_is_no_document_is_a_typed_error(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not a valid {name}"):
        of_type(name).from_json(text)


def test_non_finite_numbers_are_written_as_documented() -> None:
    content = json.loads(GUARD.model_dump_json())
    assert content["value"] == "Infinity"
    assert json.loads(ROUTE.model_dump_json())["value"] == "NaN"
    assert json.loads(ROW.model_dump_json())["kl"] == "-Infinity"


@pytest.mark.parametrize("part", [GUARD, ROUTE, ROW, SAMPLE, DEVIATED], ids=lambda part: type(part).__name__)
def test_parts_refuse_unknown_fields_too(part: Part) -> None:
    content = json.loads(part.model_dump_json())
    with pytest.raises(ValidationError, match="extra"):
        type(part).model_validate({**content, "extra_field": 1})
