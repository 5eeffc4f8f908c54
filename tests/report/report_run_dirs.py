"""Builds run directories from the typed models, as a run would leave them."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from report_tensors import kv_result, proven, tensor_result

from accuracy_core.numerics import default_tolerances
from accuracy_core.outcome import Outcome, Verdict, worst
from accuracy_core.prompts.evidence import KV, TENSORS, read_evidence
from accuracy_core.prompts.prepared import PreparedPrompt, PreparedPrompts
from accuracy_core.prompts.triage import Location, triage
from accuracy_core.schemas import (
    EngineSpec,
    Escalation,
    FaultSpec,
    GuardHit,
    KvPattern,
    PairedTest,
    Phase,
    PluginStatus,
    PromptAnalysisStatus,
    PromptResult,
    ResultsSummary,
    RouteResult,
    RowMetrics,
    RunDir,
    RunParameters,
    SampleRecord,
    ScoreRow,
    StageRecord,
    TaskStatus,
    ThresholdResult,
)

LOGITS = "logit_validation"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Recipe:
    """What the run directory is to hold. `bad_tokens` of the `bad_prompts` exceed the L2 guard."""

    n_prompts: int = 3
    n_tokens: int = 16
    bad_prompts: tuple[int, ...] = ()
    bad_tokens: tuple[int, ...] = ()
    text: str = "Q: 47+38\nA:"
    response: str = " 7+8=15, 4+3+1=8\n#### 85"
    score_passed: bool | None = True
    fault: str | None = None
    curated: bool = False
    routes_pass: bool = True
    n_samples: int = 6
    with_task: bool = True
    with_prompts: bool = True
    failed_stage: tuple[str, Outcome, str] | None = None
    errors: dict[str, str] = field(default_factory=dict)
    module: str | None = None  # tap that tensor compare blames on the bad prompts
    pattern: KvPattern | None = None  # what the KV cache of the bad prompts shows; None: not compared
    confirmed: bool | None = True


def build(root: Path, recipe: Recipe = Recipe()) -> RunDir:
    """Write the files of `recipe` below `root`."""
    run_dir = RunDir.at(root).create()
    _config(run_dir, recipe)
    if recipe.with_task:
        _task(run_dir, recipe)
    if recipe.with_prompts:
        _prompts(run_dir, recipe)
    _stages(run_dir, recipe)
    return run_dir


def row(prompt: int, token: int, *, bad: bool = False, seed: int = 0) -> RowMetrics:
    """One row with plausible numbers; a bad one exceeds the L2 guard of 3."""
    rng = random.Random(f"{prompt}/{token}/{seed}")
    ratio = rng.uniform(6, 12) if bad else rng.uniform(0.7, 1.3)
    top = rng.uniform(9, 14)
    gap = rng.uniform(0.2, 5)
    flipped = bad and token % 5 == 1
    ids = rng.randrange(4, 260)
    guards = [
        GuardHit(
            guard="l2_ratio", prompt=prompt, token=token, value=ratio, limit=3.0, detail="||t - f|| over ||b - f||"
        )
    ]
    return RowMetrics(
        prompt=prompt,
        token=token,
        topk_error={key: base * ratio for key, base in (("5", 0.002), ("50", 0.003), ("1000", 0.006), ("all", 0.006))},
        two_way_passed=not bad,
        reference_id=ids,
        expected_id=ids,
        target_id=ids + 1 if flipped else ids,
        diverged=flipped,
        divergence_gap=0.4 if flipped else 0.0,
        linf=0.01 * ratio,
        l2=0.008 * ratio,
        base_linf=0.01,
        base_l2=0.008,
        linf_ratio=ratio * rng.uniform(0.8, 1.2),
        l2_ratio=ratio,
        bc=0.55 if bad else rng.uniform(0.991, 0.9995),
        kl=1e-5 * ratio**2,
        expected_top2=[top, top - gap],
        target_top2=[top + 0.02 * ratio, top - gap + 0.03 * ratio],
        ulp=0.0625,
        guards=guards if bad else [],
    )


def _prompts(run_dir: RunDir, recipe: Recipe) -> None:
    prompts, results = [], []
    for index in range(recipe.n_prompts):
        text = recipe.text if index == 0 else f"Q: {41 + index}+{17 * index % 60}\nA:"
        prompts.append(
            PreparedPrompt(
                index=index,
                token_ids=list(range(4, 4 + max(len(text), 1))),
                text=text,
                source="curated" if recipe.curated else "deviated",
                label=("numbers" if recipe.curated else f"assay_arith #{7 * index + 3}"),
                purpose="digits" if recipe.curated else "",
                task=None if recipe.curated else "assay_arith",
                doc_id=7 * index + 3,
                ids_from_server=not recipe.curated,
            )
        )
        if str(index) not in recipe.errors:
            results.append(_result(recipe, index, text))
    note = f"no sample deviated: {len(prompts)} curated prompts were analysed instead" if recipe.curated else ""
    run_dir.write(
        run_dir.prompt_analysis / "prompts.json", PreparedPrompts(prompts=prompts, curated=recipe.curated, note=note)
    )
    run_dir.write(run_dir.prompt_analysis / "tolerances.json", default_tolerances())
    for result in results:
        run_dir.write(run_dir.prompt_result(result.index, LOGITS), result)
    verdict = worst([result.verdict for result in results if result.verdict]) if results else None
    hits = [hit for result in results for hit in result.guards]
    ratios = [item.l2_ratio for result in results for item in result.rows]
    sigma = math.sqrt(sum(value**2 for value in ratios) / len(ratios)) if ratios else math.nan
    status = PluginStatus(
        plugin=LOGITS,
        outcome=Outcome.NUMERICS if results else Outcome.NOT_MEASURED,
        verdict=verdict,
        routes=_routes(recipe, verdict, sigma),
        worst=max(hits, key=lambda hit: hit.value, default=None),
        aggregates={
            "sigma_ratio": sigma,
            "agg_bc": 0.61 if hits else 0.9981,
            "max_l2_ratio": max(ratios, default=math.nan),
        },
        per_prompt={str(result.index): result.verdict for result in results},
        errors=recipe.errors,
    )
    phase = _phase(recipe)
    plugins = {LOGITS: status, **_witnesses(run_dir, recipe, phase)}
    taken = triage(
        results,
        status,
        location=Location(phase, min(recipe.bad_tokens, default=None)),
        evidence=read_evidence(run_dir, range(recipe.n_prompts), plugins),
        target="--model embedded --fault kv-slot",
        output="runs/example",
    )
    analysis = PromptAnalysisStatus(
        verdict=verdict,
        outcome=Outcome.NUMERICS if verdict else Outcome.NOT_MEASURED,
        phase=taken.phase,
        n_prompts=len(prompts),
        curated=recipe.curated,
        plugins=plugins,
        culprit=proven(taken.culprit, confirmed=recipe.confirmed) if recipe.module and taken.culprit else taken.culprit,
        escalation=_escalation(recipe, plugins),
        engine={"engine": "vllm", "vllm": "0.32.0", "torch": "2.13.0"},
    )
    run_dir.write(run_dir.prompt_analysis_json, analysis)


def _witnesses(run_dir: RunDir, recipe: Recipe, phase: Phase) -> dict[str, PluginStatus]:
    found = {}
    made = {
        TENSORS: {i: tensor_result(i, recipe.module, phase) for i in recipe.bad_prompts} if recipe.module else {},
        KV: {i: kv_result(i, recipe.pattern) for i in recipe.bad_prompts} if recipe.pattern else {},
    }
    for name, results in made.items():
        for index, one in results.items():
            run_dir.write(run_dir.prompt_result(index, name), one)
        if results:
            verdicts = {str(index): one.verdict for index, one in results.items()}
            found[name] = PluginStatus(plugin=name, verdict=worst(list(verdicts.values())), per_prompt=verdicts)
    return found


def _escalation(recipe: Recipe, plugins: dict[str, PluginStatus]) -> Escalation | None:
    ran = [name for name in plugins if name != LOGITS]
    if not ran:
        return None
    return Escalation(prompts=list(recipe.bad_prompts), failing=len(recipe.bad_prompts), plugins=ran, duration_s=7.4)


def _phase(recipe: Recipe) -> Phase:
    if not recipe.bad_prompts or not recipe.bad_tokens:
        return Phase.NONE
    later = any(token > 0 for token in recipe.bad_tokens)
    return (Phase.BOTH if later else Phase.PREFILL) if 0 in recipe.bad_tokens else Phase.DECODE


def _result(recipe: Recipe, index: int, text: str) -> PromptResult:
    bad = set(recipe.bad_tokens) if index in recipe.bad_prompts else set()
    rows = [row(index, token, bad=token in bad) for token in range(recipe.n_tokens)]
    hits = [hit for item in rows for hit in item.guards]
    verdict = (Verdict.SUSPECT if recipe.routes_pass else Verdict.FAIL) if hits else Verdict.PASS
    answer = recipe.response
    return PromptResult(
        index=index,
        plugin=LOGITS,
        prompt=text,
        prompt_token_ids=list(range(4, 4 + max(len(text), 1))),
        token_ids=[item.reference_id for item in rows],
        tokens=[answer[token % len(answer)] for token in range(recipe.n_tokens)],
        verdict=verdict,
        phase=_phase(recipe) if bad else Phase.NONE,
        first_bad_token=min(bad, default=None),
        routes=[RouteResult(route="two_way", passed=not bad, value=1 - len(bad) / recipe.n_tokens, threshold=1.0)],
        guards=hits,
        rows=rows,
        golden_key=f"{index:02d}" + "5ad9c1" * 10,
        engine_route="forced_decode",
    )


def _routes(recipe: Recipe, verdict: Verdict | None, sigma: float) -> list[RouteResult]:
    passed = recipe.routes_pass
    return [
        RouteResult(
            route="two_way",
            passed=verdict is Verdict.PASS,
            value=1.0 if verdict is Verdict.PASS else 0.4,
            threshold=1.0,
        ),
        RouteResult(route="sigma_ratio", passed=passed, value=min(sigma, 0.98) if passed else sigma, threshold=1.0),
        RouteResult(route="agg_bc", passed=passed, value=0.9981 if passed else 0.61, threshold=0.99, detail="token 0"),
    ]


def _task(run_dir: RunDir, recipe: Recipe) -> None:
    value = 0.9 if recipe.score_passed is not False else 0.62
    score = ScoreRow(
        key="assay_arith/exact_match,strict-match",
        task="assay_arith",
        metric="exact_match",
        filter="strict-match",
        value=value,
        stderr=0.0211,
        n=200,
    )
    flexible = score.model_copy(
        update={"key": "assay_arith/exact_match,flexible-extract", "filter": "flexible-extract", "value": value + 0.01}
    )
    group = ScoreRow(
        key="assay_suite/acc,none",
        task="assay_suite",
        metric="acc",
        filter="none",
        value=0.8123,
        stderr=0.03,
        n=160,
        is_group=True,
    )
    threshold = ThresholdResult(
        given_key="exact_match,strict-match", key=score.key, bound=0.85, value=value,
        passed=recipe.score_passed is not False,
        reason="" if recipe.score_passed is not False else "below the minimum", smallest_detectable_drop=0.094, n=200,
    )  # fmt: skip
    paired = PairedTest(
        key=score.key,
        n=200,
        n_worse=3,
        n_better=1,
        difference=-0.01,
        ci_low=-0.031,
        ci_high=0.011,
        mcnemar_p=0.625,
        margin=0.02,
        non_inferior=True,
    )
    status = TaskStatus(
        passed=recipe.score_passed,
        scores=[score, flexible, group],
        thresholds=[] if recipe.score_passed is None else [threshold],
        paired=[paired],
        n_samples=200,
        n_deviated=round((1 - value) * 200),
        model="tiny-llama",
        results_files=["eval_results/tiny-llama/results_2026.json"],
    )
    run_dir.write(run_dir.task_analysis / "task_status.json", status)
    deviating = [sample for doc in range(recipe.n_samples) for sample in _sample(recipe, doc, right=False)]
    matching = [sample for doc in range(100, 100 + recipe.n_samples) for sample in _sample(recipe, doc, right=True)]
    summary = ResultsSummary(
        deviating=deviating, matching=matching, n_deviating=recipe.n_samples, n_matching=recipe.n_samples
    )
    run_dir.write(run_dir.task_analysis / "results_summary.json", summary)


def _sample(recipe: Recipe, doc: int, *, right: bool) -> list[SampleRecord]:
    text = recipe.text if doc == 0 else f"Q: {doc % 90}+{(7 * doc) % 60}\nA:"
    return [
        SampleRecord(
            task="assay_arith", doc_id=doc, filter=name, prompt=text,
            right=right or (name == "flexible-extract" and doc % 3 == 1),
            target="#### 85", response=[recipe.response], filtered_response=["85" if right else "[invalid]"],
            metrics={"exact_match": float(right)}, truncated=doc == 2,
        )
        for name in ("strict-match", "flexible-extract")
    ]  # fmt: skip


def _config(run_dir: RunDir, recipe: Recipe) -> None:
    fault = FaultSpec(name=recipe.fault, layer=2, strength=1.05) if recipe.fault else None
    parameters = RunParameters(
        engine=EngineSpec(model="embedded", fault=fault),
        thresholds={"exact_match,strict-match": 0.85},
        output_dir="runs/example",
    )
    config = {
        "parameters": parameters.model_dump(mode="json"),
        "model_name": "tiny-llama",
        "model_path": "models/tiny-llama",
        "model_fingerprint": "b0ec1e5a0aefe721" * 4,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.19.0"},
    }
    run_dir.run_config.write_text(json.dumps(config), encoding="utf-8")


def _stages(run_dir: RunDir, recipe: Recipe) -> None:
    at = START
    durations = {"evaluate": 41.3, "stop_server": 0.8, "task_analysis": 0.4, "goldens": 6.2, "prompt_analysis": 18.9}
    for stage, seconds in durations.items():
        failed = recipe.failed_stage is not None and recipe.failed_stage[0] == stage
        record = StageRecord(
            stage=stage,
            inputs_hash="0" * 64,
            started=at,
            duration_s=seconds,
            status="failed" if failed else "done",
            outcome=recipe.failed_stage[1] if failed and recipe.failed_stage else None,
            message=recipe.failed_stage[2] if failed and recipe.failed_stage else "",
            versions={"assay-llm": "0.1.0", "lm-eval": "0.4.13"},
        )
        run_dir.write(run_dir.stages / f"{stage}.json", record)
        at += timedelta(seconds=seconds)
        if failed:
            return
