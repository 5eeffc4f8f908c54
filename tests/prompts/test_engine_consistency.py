"""The plugin with an engine that can be made to serve wrongly, not at all, or otherwise than it was asked."""

from __future__ import annotations

import math

import pytest
import torch
from prompt_fakes import SPEC, VOCAB, FakeEngine, FakeTokenizer, make_goldens
from serving_fakes import BLOCK, ServingEngine

from accuracy_core.errors import EngineArgumentError, ReferenceError_
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts import PLUGIN_REGISTRY, conclude, run_prompt_analysis
from accuracy_core.prompts.plugins.engine_consistency import EngineConsistencyPlugin, with_prefix_cache
from accuracy_core.schemas import ConsistencyKind, ConsistencyResult, EngineSpec, Platform, RunDir, Severity

LONG, SHORT = ["x" * 70, "y" * 40, "z" * 33], ["ab", "c"]
WAYS = ["prefix_cache", "batching", "chunked_prefill"]
TOKENS = 6


@pytest.fixture(autouse=True)
def goldens(monkeypatch):
    """References for whatever prompts are asked for, up to four."""
    made = make_goldens(4, TOKENS)
    monkeypatch.setattr("accuracy_core.prompts.goldens.compute_goldens", lambda *args, **options: made)
    return made


def run(tmp_path, engine, prompts=LONG, spec=SPEC, **plugin):
    factory = engine.open if isinstance(engine, ServingEngine) else engine
    result = run_prompt_analysis(
        spec, prompts, [EngineConsistencyPlugin(**plugin)], tmp_path / "run", output_length=TOKENS,
        engine_factory=factory, tokenizer=FakeTokenizer(),
    )  # fmt: skip
    run_dir = RunDir.at(tmp_path / "run")
    found = run_dir.consistency_json
    return result, run_dir.read(found, ConsistencyResult) if found.exists() else None


def verdicts(found: ConsistencyResult) -> dict[str, Verdict | None]:
    return {check.kind.value: check.verdict for check in found.checks}


def check(found: ConsistencyResult, kind: str):
    return next(one for one in found.checks if one.kind is ConsistencyKind(kind))


def farther(size: float, token: int | None = None):
    """Add `size` times the fakes' noise, to one row or to all."""

    def change(rows: torch.Tensor) -> torch.Tensor:
        added = 0.01 * size * torch.randn(rows.shape, generator=torch.Generator().manual_seed(3))
        chosen = slice(None) if token is None else slice(token, token + 1)
        rows = rows.clone()
        rows[chosen] += added[chosen]
        return rows

    return change


def test_clean_engine_passes_every_check_in_aabb_order(tmp_path, goldens):
    engine = ServingEngine(tmp_path, goldens)
    result, found = run(tmp_path, engine)
    assert result.passed
    assert verdicts(found) == dict.fromkeys(["repeat", *WAYS], Verdict.PASS)
    names = [name for name, _ in engine.passes]
    assert names == ["a1", "a2", *(f"{way}-b{i}" for way in WAYS for i in (1, 2))]
    conditions = dict(engine.passes)
    assert conditions["a1"].forget_prefixes
    assert not conditions["prefix_cache-b1"].forget_prefixes
    assert [name for name, asked in engine.passes if asked.read_prefixes] == names[2:4]
    assert [name for name, asked in engine.passes if asked.together] == names[4:6]
    assert [name for name, asked in engine.passes if asked.prefill_chunk] == names[6:8]
    assert (engine.opened, engine.closed) == (1, 1)
    assert engine.opened_with[0].engine_args == {"enable_prefix_caching": True, "block_size": BLOCK}
    forced = goldens["fp32_logits"][1][:, 0].argmax(-1).tolist()
    assert [r.forced_token_ids for r in engine.requests if r.request_id.endswith("-1")] == [forced] * 8
    assert result.status.plugins["engine_consistency"].per_prompt == dict.fromkeys("012", Verdict.PASS)
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_way_that_changes_logits_is_found_by_its_own_check_and_named(tmp_path, goldens, way, number):
    name = f"{way}-b{number}"
    engine = ServingEngine(
        tmp_path, goldens, change=lambda at, rows: farther(30, token=2)(rows) if at == name else rows
    )
    result, found = run(tmp_path, engine)
    others = [kind for kind in ("repeat", *WAYS) if kind != way]
    assert verdicts(found) == {**dict.fromkeys(others, Verdict.PASS), way: Verdict.FAIL}
    assert (result.verdict, result.outcome) == (Verdict.FAIL, Outcome.NUMERICS)
    (finding,) = [item for item in result.status.findings if item.check == "engine_consistency"]
    assert (finding.severity, finding.outcome) == (Severity.ERROR, Outcome.NUMERICS)
    title = {"prefix_cache": "prefix caching", "chunked_prefill": "chunked prefill"}.get(way, way)
    assert f"{title} changes the logits: prompt 0, token 2 (decode):" in finding.evidence
    assert "times over" in finding.evidence
    assert "to confirm" in finding.fix
    worst = result.status.plugins["engine_consistency"].worst
    assert (worst.guard, worst.prompt, worst.token) == (way, 0, 2)
    decided = conclude(None, result.status, skipped=["evaluate", "task_analysis"])
    assert (decided.verdict, decided.state, decided.exit_code) == (Verdict.FAIL, "AccuracyFailed", 2)
    assert f"{title} changes the logits" in decided.headline
    assert decided.fix == finding.fix


@pytest.mark.parametrize("way", WAYS)
def test_nan_never_passes(tmp_path, goldens, way):
    def change(name, rows):
        return torch.where(torch.arange(VOCAB) == 3, math.nan, rows) if name == f"{way}-b2" else rows

    _, found = run(tmp_path, ServingEngine(tmp_path, goldens, change=change))
    assert check(found, way).verdict is Verdict.FAIL
    assert "not finite" in check(found, way).worst.reasons[0]


def test_an_engine_that_does_not_repeat_itself_has_a_finding_of_its_own(tmp_path, goldens):
    def change(name, rows):
        return farther(0.1, token=4)(rows) if name == "a2" else rows

    result, found = run(tmp_path, ServingEngine(tmp_path, goldens, change=change))
    assert verdicts(found) == {"repeat": Verdict.FAIL, **dict.fromkeys(WAYS, Verdict.PASS)}
    assert result.verdict is Verdict.FAIL
    (finding,) = [item for item in result.status.findings if item.check == "engine_consistency"]
    assert "asking again changes the logits: prompt 2, token 4 (decode): asked again" in finding.evidence


@pytest.mark.parametrize("way", WAYS)
def test_a_condition_that_did_not_take_place_is_not_measured(tmp_path, goldens, way):
    def conducts(name, conduct):
        neutral = {"cached_tokens": 0, "largest_batch": 1, "prefill_chunks": [sum(conduct.prefill_chunks)]}
        return conduct.model_copy(update=neutral) if name == f"{way}-b2" else conduct

    engine = ServingEngine(tmp_path, goldens, conducts=conducts, change=lambda n, r: farther(30)(r) if way in n else r)
    result, found = run(tmp_path, engine)
    assert check(found, way).verdict is None
    assert len(check(found, way).left_out) == 3
    assert "prompt tokens)" in check(found, way).reason
    assert result.status.verdict is Verdict.PASS
    decided = conclude(None, result.status, skipped=["evaluate", "task_analysis"])
    assert (decided.outcome, decided.verdict, decided.exit_code) == (Outcome.NOT_MEASURED, None, 0)
    assert "not measured" in decided.headline


@pytest.mark.parametrize("way", WAYS)
def test_a_condition_that_took_place_all_along_is_no_comparison(tmp_path, goldens, way):
    def conducts(name, conduct):
        return conduct.model_copy(update={"cached_tokens": 32, "largest_batch": 2, "prefill_chunks": [5, 5]})

    _, found = run(tmp_path, ServingEngine(tmp_path, goldens, conducts=conducts))
    assert check(found, way).verdict is None
    assert "took place though it was not asked for" in check(found, way).reason
    assert found.verdict is None


def test_an_engine_that_does_not_tell_how_it_served_is_not_measured(tmp_path, goldens):
    result, found = run(tmp_path, ServingEngine(tmp_path, goldens, conducts=lambda name, conduct: None))
    assert verdicts(found) == {"repeat": Verdict.PASS, **dict.fromkeys(WAYS)}
    assert result.verdict is None
    assert "does not tell" in check(found, "batching").reason


@pytest.mark.parametrize("way", ["prefix_caching", "batching", "chunked_prefill"])
def test_what_an_engine_cannot_do_is_not_measured_and_spoils_nothing(tmp_path, goldens, way):
    engine = ServingEngine(tmp_path, goldens, **{way: False})
    result, found = run(tmp_path, engine)
    (missing,) = found.unmeasured
    assert (missing.verdict, missing.lacking) == (None, True)
    assert missing.reason == f"this engine lacks {way}: it is switched off"
    assert len(engine.passes) == 7  # two per way that is there; the other one is asked once, why it is not
    decided = conclude(None, result.status, skipped=["evaluate", "task_analysis"])
    assert any(missing.reason in note for note in decided.notes)
    assert result.status.plugins["engine_consistency"].not_measured == {}
    assert (result.status.verdict, result.status.plugins["engine_consistency"].errors) == (Verdict.PASS, {})


@pytest.mark.parametrize("kind", ["transformers", "fake"])
def test_an_engine_that_cannot_be_told_how_to_serve(tmp_path, kind):
    opened = []

    def factory(spec):
        opened.append(spec)
        return FakeEngine(tmp_path, [])

    result, found = run(tmp_path, factory, spec=SPEC.model_copy(update={"engine": kind}))
    assert [one.lacking for one in found.checks] == [True] * 4
    assert len(opened) == (kind == "fake")  # of a known kind it is known beforehand
    plugin = result.status.plugins["engine_consistency"]
    assert (plugin.verdict, plugin.outcome, plugin.errors) == (None, Outcome.NOT_MEASURED, {})
    assert "cannot be told to serve otherwise" in plugin.not_measured["batching"]


def test_short_prompts_get_a_long_one_beside_them_and_are_left_out_by_name(tmp_path, goldens):
    result, found = run(tmp_path, ServingEngine(tmp_path, goldens), prompts=SHORT)
    assert found.added == ["long"]
    assert verdicts(found) == dict.fromkeys(["repeat", *WAYS], Verdict.PASS)
    cached = check(found, "prefix_cache")
    assert [(rows.index, rows.label) for rows in cached.prompts] == [(None, "long")]
    assert set(cached.left_out) == {"prompt 0", "prompt 1"}
    assert "(3 prompt tokens)" in cached.left_out["prompt 0"]
    assert [rows.index for rows in check(found, "batching").prompts] == [0, 1, None]
    assert result.status.plugins["engine_consistency"].per_prompt == dict.fromkeys("01", Verdict.PASS)


def test_one_prompt_makes_no_batch_and_gets_company(tmp_path, goldens):
    _, found = run(tmp_path, ServingEngine(tmp_path, goldens), prompts=LONG[:1])
    assert [rows.index for rows in check(found, "batching").prompts] == [0, None]


def test_prompts_beyond_the_most_are_named(tmp_path, goldens):
    _, found = run(tmp_path, ServingEngine(tmp_path, goldens), max_prompts=2)
    assert check(found, "repeat").left_out == {"prompt 2": "only the first 2 prompts are taken"}


def test_without_references_the_engines_own_text_is_followed_and_the_logits_measure(tmp_path, goldens, monkeypatch):
    def none(*args, **options):
        raise ReferenceError_("golden holds NaN")

    monkeypatch.setattr("accuracy_core.prompts.goldens.compute_goldens", none)
    engine = ServingEngine(tmp_path, goldens, change=lambda n, r: farther(200)(r) if n == "batching-b1" else r)
    result, found = run(tmp_path, engine)
    assert {one.yardstick for one in found.checks} == {"logits"}
    assert [name for name, verdict in verdicts(found).items() if verdict is Verdict.FAIL] == ["batching"]
    first = next(r for r in engine.requests if r.request_id == "consistency-a1-0")
    later = next(r for r in engine.requests if r.request_id == "consistency-a2-0")
    assert (first.forced_token_ids, first.max_new_tokens, len(later.forced_token_ids)) == ([], TOKENS, TOKENS)
    assert result.verdict is Verdict.FAIL


def test_a_request_that_fails_costs_its_prompt_only(tmp_path, goldens):
    engine = ServingEngine(tmp_path, goldens)
    engine.change = lambda r: (
        r.model_copy(update={"error": "out of blocks"}) if r.request_id == "consistency-batching-b1-2" else r
    )
    _, found = run(tmp_path, engine)
    assert check(found, "batching").left_out == {"prompt 2": "out of blocks"}
    assert verdicts(found) == dict.fromkeys(["repeat", *WAYS], Verdict.PASS)


def test_rows_of_another_text_are_not_compared(tmp_path, goldens):
    engine = ServingEngine(tmp_path, goldens)
    engine.change = lambda r: r.model_copy(update={"token_ids": [9] * TOKENS}) if "-b1-0" in r.request_id else r
    _, found = run(tmp_path, engine)
    assert "did not follow the forced tokens" in check(found, "batching").left_out["prompt 0"]


def test_engine_death_is_infrastructure(tmp_path, goldens):
    result, found = run(tmp_path, ServingEngine(tmp_path, goldens, die_in="batching-b1"))
    assert (result.outcome, result.status.log_tail, found) == (Outcome.INFRASTRUCTURE, "last words", None)


def test_an_engine_that_refuses_a_prefix_cache_is_opened_without(tmp_path, goldens):
    engine = ServingEngine(tmp_path, goldens, prefix_caching=False)

    def factory(spec):
        if "enable_prefix_caching" in spec.engine_args:
            raise EngineArgumentError("no prefix caching on this platform")
        return engine.open(spec)

    _, found = run(tmp_path, factory)
    assert verdicts(found) == {"repeat": Verdict.PASS, **dict.fromkeys(WAYS[1:], Verdict.PASS), WAYS[0]: None}


def test_the_engine_has_a_prefix_cache_unless_the_spec_says_otherwise():
    def arguments(platform=Platform.CPU, **given):
        return with_prefix_cache(EngineSpec(model="m", platform=platform, engine_args=given)).engine_args

    assert arguments() == {"enable_prefix_caching": True, "block_size": 32}
    assert arguments(Platform.CUDA) == {"enable_prefix_caching": True}
    assert arguments(**{"block-size": 64, "enable_prefix_caching": False}) == {
        "block_size": 64, "enable_prefix_caching": False,
    }  # fmt: skip


def test_it_is_registered():
    assert PLUGIN_REGISTRY["engine_consistency"] is EngineConsistencyPlugin
