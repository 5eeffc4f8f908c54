"""The orchestrator with an engine that can be made to fail in every way."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from prompt_fakes import BOS, SPEC, VOCAB, FakeEngine, FakeTokenizer, clean_rows, make_goldens

from accuracy_core.errors import (
    ConfigurationError,
    EngineArgumentError,
    EngineStartError,
    InfrastructureError,
    NotMeasuredError,
    ReferenceError_,
)
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts import (
    PLUGIN_REGISTRY,
    LogitValPlugin,
    PromptPlugin,
    make_plugins,
    register,
    run_prompt_analysis,
)
from accuracy_core.prompts import orchestrator as orchestrator_module
from accuracy_core.schemas import FaultSpec, Phase, PromptAnalysisStatus, PromptResult, RunDir

PROMPTS = ["ab", "cde", "f"]


class Probe(PromptPlugin):
    """Records what it was given; can be told to fail."""

    name = "probe"

    def __init__(self, *, shared=True, fail=None, passed=True, name="probe"):
        self.needs_shared_llm, self.fail, self.passed, self.name = shared, fail, passed, name
        self.calls = []
        self.ctx = None

    def pre_llm(self, ctx):
        self.calls.append("pre_llm")
        if self.fail == "pre_llm":
            raise RuntimeError("probe broke in pre_llm")

    def run(self, ctx):
        self.calls.append("run")
        self.ctx = ctx
        if isinstance(self.fail, Exception):
            raise self.fail
        return {"passed": self.passed}

    def save(self, ctx, results):
        self.calls.append("save")
        if self.fail == "save":
            raise RuntimeError("probe broke in save")


def run(tmp_path, plugins, *, rows=None, engine=None, prompts=PROMPTS, goldens=None, **more):
    goldens = goldens or make_goldens(len(prompts), 8)
    if engine is None:
        rows = rows if rows is not None else [clean_rows(goldens, i) for i in range(len(prompts))]
        engine = FakeEngine(tmp_path, rows)
    made = {"engine_factory": lambda spec: engine, "goldens": goldens, "tokenizer": FakeTokenizer(), **more}
    return run_prompt_analysis(SPEC, prompts, plugins, tmp_path / "run", output_length=8, **made), engine


def read(tmp_path, index) -> PromptResult:
    run_dir = RunDir.at(tmp_path / "run")
    return run_dir.read(run_dir.prompt_result(index, "logit_validation"), PromptResult)


def test_clean_rows_pass_and_every_documented_file_is_written(tmp_path, pages):
    result, engine = run(tmp_path, [LogitValPlugin()])
    assert result.passed
    assert (result.verdict, result.outcome) == (Verdict.PASS, Outcome.NUMERICS)
    assert result.plugin_results["logit_validation"].per_prompt == dict.fromkeys("012", Verdict.PASS)
    assert (engine.opened, engine.closed) == (1, 1)
    folder = tmp_path / "run" / "prompt_analysis"
    assert result.report_path == str(folder / "prompt_report.txt")
    for name in ("prompt_report.txt", "analysis.json", "prompts.json", "tolerances.json"):
        assert (folder / name).stat().st_size > 0
    for name in ("prompt.txt", "validation_log.txt", "prompt_result.json"):
        assert (folder / "prompt_1" / name).stat().st_size > 0
    logits = folder / "prompt_1" / "logit_validation"
    assert (logits / "logit_analysis_b0.html").read_text().startswith("<!DOCTYPE html>")
    saved = torch.load(logits / "target_logits.pt", weights_only=True)
    assert saved.shape == (8, 1, VOCAB)
    assert (folder / "prompt_1" / "prompt.txt").read_text() == "cde"


def test_the_engine_is_forced_along_the_fp32_reference(tmp_path):
    goldens = make_goldens(3, 8)
    _, engine = run(tmp_path, [LogitValPlugin()], goldens=goldens)
    for i, request in enumerate(engine.requests):
        assert request.forced_token_ids == goldens["fp32_logits"][i][:, 0].argmax(-1).tolist()
        assert request.prompt_token_ids[0] == BOS
        assert request.request_id == f"prompt-{i}"


def test_a_fault_in_one_prompt_fails_the_run_and_names_prompt_and_token(tmp_path):
    goldens = make_goldens(3, 8)
    rows = [clean_rows(goldens, i) for i in range(3)]
    rows[1][3:] += 0.4 * torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(5))
    result, _ = run(tmp_path, [LogitValPlugin()], rows=rows, goldens=goldens)
    assert result.verdict in (Verdict.FAIL, Verdict.SUSPECT)
    assert not result.passed
    assert result.status.phase is Phase.DECODE
    assert result.status.culprit.phase is Phase.DECODE
    bad = read(tmp_path, 1)
    assert bad.first_bad_token == 3
    assert {hit.prompt for hit in bad.guards if hit.token >= 0} == {1}
    assert read(tmp_path, 0).first_bad_token is None
    assert result.status.plugins["logit_validation"].worst.prompt in (1, -1)


def test_nan_from_the_target_never_passes(tmp_path):
    goldens = make_goldens(3, 8)
    rows = [clean_rows(goldens, i) for i in range(3)]
    rows[2][0, 17] = float("nan")
    result, _ = run(tmp_path, [LogitValPlugin()], rows=rows, goldens=goldens)
    assert result.verdict is not Verdict.PASS
    assert "non_finite" in {hit.guard for hit in read(tmp_path, 2).guards}


def test_missing_tokens_never_pass(tmp_path):
    goldens = make_goldens(3, 8)
    rows = [clean_rows(goldens, 0), clean_rows(goldens, 1)[:5], clean_rows(goldens, 2)]
    result, _ = run(tmp_path, [LogitValPlugin()], rows=rows, goldens=goldens)
    assert result.verdict is not Verdict.PASS
    assert "missing_tokens" in {hit.guard for hit in read(tmp_path, 1).guards}


def test_a_prompt_that_fails_in_the_engine_is_recorded_and_the_others_go_on(tmp_path):
    goldens = make_goldens(3, 8)
    rows = [clean_rows(goldens, 0), "out of blocks", clean_rows(goldens, 2)]
    result, _ = run(tmp_path, [LogitValPlugin()], rows=rows, goldens=goldens)
    status = result.plugin_results["logit_validation"]
    assert status.errors == {"1": "out of blocks"}
    assert status.per_prompt == {"0": Verdict.PASS, "2": Verdict.PASS}
    assert result.verdict is Verdict.PASS
    assert not result.passed
    assert read(tmp_path, 1).error == "out of blocks"
    assert read(tmp_path, 2).rows[0].prompt == 2


def test_an_invalid_golden_costs_its_prompt_only(tmp_path):
    goldens = make_goldens(3, 8)
    goldens["fp32_logits"][0][2, 0, 3] = float("nan")
    rows = [clean_rows(goldens, 1), clean_rows(goldens, 2)]
    result, engine = run(tmp_path, [LogitValPlugin()], rows=rows, goldens=goldens)
    assert "NaN" in result.plugin_results["logit_validation"].errors["0"]
    assert [request.request_id for request in engine.requests] == ["prompt-1", "prompt-2"]
    assert result.plugin_results["logit_validation"].per_prompt == {"1": Verdict.PASS, "2": Verdict.PASS}


def test_goldens_of_other_prompts_are_not_compared(tmp_path):
    goldens = make_goldens(3, 8)
    ids = [FakeTokenizer()(text)["input_ids"] for text in PROMPTS]
    goldens["input_ids"] = [[ids[0]], [ids[2]], [ids[1]]]
    rows = [clean_rows(goldens, 0)]
    result, engine = run(tmp_path, [LogitValPlugin()], rows=rows, goldens=goldens)
    assert set(result.plugin_results["logit_validation"].errors) == {"1", "2"}
    assert "another prompt" in result.plugin_results["logit_validation"].errors["1"]
    assert len(engine.requests) == 1


def test_rows_of_another_text_are_not_compared(tmp_path):
    goldens = make_goldens(3, 8)
    engine = FakeEngine(tmp_path, [clean_rows(goldens, i) for i in range(3)])
    engine.change = lambda r: r.model_copy(update={"token_ids": [9] * 8}) if r.request_id == "prompt-2" else r
    result, _ = run(tmp_path, [LogitValPlugin()], engine=engine, goldens=goldens)
    assert "did not follow the forced tokens" in result.plugin_results["logit_validation"].errors["2"]


def test_engine_death_is_infrastructure(tmp_path):
    goldens = make_goldens(3, 8)
    engine = FakeEngine(tmp_path, [clean_rows(goldens, i) for i in range(3)], die_at=1)
    own = Probe(shared=False, name="own")
    result, _ = run(tmp_path, [LogitValPlugin(), own], engine=engine, goldens=goldens)
    assert result.outcome is Outcome.INFRASTRUCTURE
    assert result.status.log_tail == "last words"
    assert engine.closed == 1
    assert own.calls == ["pre_llm", "run", "save"]
    with pytest.raises(InfrastructureError, match="the engine is gone") as caught:
        result.raise_if_broken()
    assert caught.value.log_tail == "last words"


def test_an_engine_that_does_not_start_is_infrastructure(tmp_path):
    def refuse(spec):
        raise EngineStartError("no memory", log_tail="oom")

    result, _ = run(tmp_path, [LogitValPlugin()], engine_factory=refuse)
    assert result.outcome is Outcome.INFRASTRUCTURE
    assert "no memory" in result.plugin_results["logit_validation"].errors["plugin"]


def test_an_engine_that_refuses_its_arguments_is_a_configuration_error(tmp_path):
    def refuse(spec):
        raise EngineArgumentError("unknown argument")

    with pytest.raises(ConfigurationError, match="unknown argument"):
        run(tmp_path, [LogitValPlugin()], engine_factory=refuse)


@pytest.mark.parametrize("fail", ["pre_llm", "save", ValueError("bug"), NotMeasuredError("no hooks")])
def test_a_plugin_that_fails_costs_only_itself(tmp_path, fail):
    probe = Probe(fail=fail)
    result, engine = run(tmp_path, [probe, LogitValPlugin()])
    assert result.plugin_results["logit_validation"].verdict is Verdict.PASS
    failed = result.plugin_results["probe"]
    assert (failed.verdict, failed.outcome) == (None, Outcome.NOT_MEASURED)
    assert failed.errors["plugin"]
    assert not result.passed
    assert engine.opened == 1


def test_one_engine_serves_all_plugins_and_pre_llm_comes_first(tmp_path):
    order = []
    first, second = Probe(name="first"), Probe(name="second")
    for probe in (first, second):
        probe.pre_llm = lambda ctx, probe=probe: order.append((probe.name, ctx.engine))
    _, engine = run(tmp_path, [first, second])
    assert order == [("first", None), ("second", None)]
    assert first.ctx.engine is second.ctx.engine is engine
    assert engine.opened == 1
    logits, ids = first.ctx.generate_fn(torch.tensor([[1, 2]]))
    assert logits.shape == (8, 1, VOCAB)
    assert ids.shape == (8, 1)


def test_a_plugin_with_its_own_engine_gets_neither_engine_nor_goldens(tmp_path):
    probe = Probe(shared=False)
    result, engine = run(tmp_path, [probe], rows=[], goldens={"fp32_logits": []})
    assert (probe.ctx.engine, probe.ctx.goldens, probe.ctx.generate_fn) == (None, None, None)
    assert engine.opened == 0
    assert result.passed


def test_no_reference_is_computed_for_it_either(tmp_path, monkeypatch):
    monkeypatch.setattr(orchestrator_module, "compute_goldens", lambda *a, **k: pytest.fail("computed"))
    result = run_prompt_analysis(SPEC, ["a"], [Probe(shared=False)], tmp_path, tokenizer=FakeTokenizer())
    assert result.passed


def test_an_unusable_reference_is_not_measured(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ReferenceError_("golden holds NaN")

    monkeypatch.setattr(orchestrator_module, "compute_goldens", broken)
    result = run_prompt_analysis(SPEC, ["a"], [LogitValPlugin()], tmp_path, tokenizer=FakeTokenizer())
    assert (result.outcome, result.verdict) == (Outcome.NOT_MEASURED, None)
    assert "golden holds NaN" in result.plugin_results["logit_validation"].errors["plugin"]


def test_an_open_engine_is_left_open(tmp_path):
    goldens = make_goldens(3, 8)
    engine = FakeEngine(tmp_path, [clean_rows(goldens, i) for i in range(3)])
    result = run_prompt_analysis(
        SPEC, PROMPTS, [LogitValPlugin()], tmp_path / "run", output_length=8,
        engine=engine, goldens=goldens, tokenizer=FakeTokenizer(),
    )  # fmt: skip
    assert result.passed
    assert (engine.opened, engine.closed) == (0, 0)


@pytest.mark.parametrize(
    ("prompts", "plugins", "words"),
    [
        ([], [LogitValPlugin()], "list of prompts is empty"),
        (["a"], [], "plugin_steps is empty"),
        (["a"], ["logit_valdation"], "unknown prompt plugin 'logit_valdation'"),
        (["a"], ["logit_validation", LogitValPlugin()], "given twice"),
        (["x" * 300], ["logit_validation"], "too long"),
    ],
)
def test_wrong_set_up_is_raised_before_any_work(tmp_path, prompts, plugins, words):
    def no_engine(spec):
        pytest.fail("an engine was opened")

    with pytest.raises(ConfigurationError, match=words):
        run_prompt_analysis(
            SPEC, prompts, plugins, tmp_path / "run", tokenizer=FakeTokenizer(), engine_factory=no_engine
        )
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_is_a_file_is_a_configuration_error(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigurationError, match="not writable"):
        run(tmp_path, [LogitValPlugin()])


def test_the_documented_server_config_is_accepted(tmp_path):
    config = {"server": {"model": "embedded", "tp_degree": 2, "max_model_len": 64}}
    probe = Probe(shared=False)
    run_prompt_analysis(config, ["a"], [probe], tmp_path, tokenizer=FakeTokenizer())
    assert probe.ctx.server_config.tensor_parallel_size == 2


def test_the_context_is_immutable(tmp_path):
    probe = Probe()
    run(tmp_path, [probe])
    with pytest.raises(FrozenInstanceError):
        probe.ctx.dtype = "float16"
    assert replace(probe.ctx, dtype="float16").dtype == "float16"
    assert isinstance(probe.ctx.prompts, tuple)


def test_progress_is_reported_per_prompt(tmp_path):
    seen = []
    run(tmp_path, [LogitValPlugin()], progress=lambda *event: seen.append(event))
    assert [done for _, done, _ in seen] == [1, 2, 3]
    assert {total for *_, total in seen} == {3}


def test_registry_and_names():
    assert PLUGIN_REGISTRY["logit_validation"] is LogitValPlugin
    assert [plugin.name for plugin in make_plugins(["logit_validation"])] == ["logit_validation"]

    class Impostor(Probe):
        name = "logit_validation"

    with pytest.raises(ConfigurationError, match="two prompt plugins"):
        register(Impostor)


def test_analysis_json_round_trips(tmp_path):
    result, _ = run(tmp_path, [LogitValPlugin()])
    text = (tmp_path / "run" / "prompt_analysis" / "analysis.json").read_text()
    assert PromptAnalysisStatus.from_json(text).model_dump_json() == result.status.model_dump_json()
    assert json.loads(text)["engine"]["fake"] == "1"


def test_fault_is_part_of_the_next_command(tmp_path):
    goldens = make_goldens(3, 8)
    rows = [clean_rows(goldens, i) + 0.5 * torch.randn(8, VOCAB) for i in range(3)]
    spec = SPEC.model_copy(update={"fault": FaultSpec(name="mlp-scale")})
    result = run_prompt_analysis(
        spec, PROMPTS, ["logit_validation"], tmp_path / "run", 8, goldens=goldens, tokenizer=FakeTokenizer(),
        engine=FakeEngine(tmp_path, rows),
    )  # fmt: skip
    assert "--fault mlp-scale" in result.status.culprit.next_command
