"""Automatic triage from first to last, with hand-made witnesses and an engine that a replacement can cure."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from prompt_fakes import SPEC, VOCAB, CuringEngine, FakeTokenizer, clean_rows, make_goldens
from prompt_rows import result, row
from witness_fakes import ORDER, Witness, kv, tensors

from accuracy_core.errors import EngineDiedError, NotMeasuredError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts import PLUGIN_REGISTRY, conclude, run_prompt_analysis
from accuracy_core.prompts import injections as injections_module
from accuracy_core.prompts.escalation import worst_prompts
from accuracy_core.prompts.replacing import outdoes
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.schemas import (
    KvPattern,
    Phase,
    PromptAnalysisStatus,
    PromptResult,
    Replacement,
    ReplacementTrial,
    RunDir,
)

PROMPTS = ["ab", "cde", "f", "gh"]
BLAMED = "model.layers.1.self_attn.attn"
CURED_BY = {BLAMED, "model.layers.1.mlp.down_proj", "model.layers.1", "model.norm"}  # the fault and all behind it


class HandMade:
    """Injections that name the tap as the engine's own. `refused`: taps that this engine cannot replace."""

    def __init__(self, refused=()):
        self.refused = refused

    def taps(self, position):
        return list(ORDER)

    def possible(self, tap):
        return tap not in self.refused

    def replacements(self, position, taps):
        for tap in set(taps) & set(self.refused):
            raise NotMeasuredError(f"{tap} cannot be replaced in this engine")
        return [Replacement(tap=f"{tap}:out0", file="x.safetensors", tensor=tap) for tap in taps]


class Setting:
    """A run over four prompts of which 1 and 2 are off unless a tap in `cured_by` is replaced, or all of `all_of`, or
    any `heals_with` taps whatever they are."""

    def __init__(self, tmp_path, monkeypatch):
        self.tmp_path = tmp_path
        self.goldens = make_goldens(len(PROMPTS), 8)
        self.cured_by, self.all_of, self.bad = CURED_BY, set(), {1: 0.3, 2: 0.6}
        self.heals_with = None
        self.engine = CuringEngine(tmp_path, self.rows)
        self.tensors = Witness("tensor_compare", lambda i: tensors(BLAMED, index=i, phase=Phase.DECODE, position=6))
        self.kv = Witness("kv_cache", lambda i: kv(KvPattern.SHIFTED, index=i, at=1, head=1, position=5))
        self.injections = HandMade()
        self.monkeypatch = monkeypatch

    def rows(self, request):
        index = int(request.request_id.split("-")[1])
        rows = clean_rows(self.goldens, index)
        replaced = {one.tap.removesuffix(":out0") for one in request.replacements}
        if self.heals_with is not None:
            cured = len(replaced) >= self.heals_with
        else:
            cured = self.all_of <= replaced if self.all_of else bool(replaced & self.cured_by)
        if index in self.bad and not cured:
            noise = torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(index))
            rows[1:] += self.bad[index] * noise
        return rows

    def run(self, plugins=("logit_validation",), *, spec=SPEC, **more):
        self.monkeypatch.setitem(PLUGIN_REGISTRY, "tensor_compare", lambda **options: self.with_options(options))
        self.monkeypatch.setitem(PLUGIN_REGISTRY, "kv_cache", lambda: self.kv)
        self.monkeypatch.setattr(injections_module, "captured_injections", lambda *args: nullcontext(self.injections))
        return run_prompt_analysis(
            spec, PROMPTS, list(plugins), self.tmp_path / "run", 8, goldens=self.goldens, tokenizer=FakeTokenizer(),
            engine_factory=lambda _: self.engine, **more,
        )  # fmt: skip

    def with_options(self, options):
        self.options = options
        return self.tensors


@pytest.fixture
def setting(tmp_path, monkeypatch):
    return Setting(tmp_path, monkeypatch)


def test_failing_logits_are_followed_up_to_a_confirmed_culprit(setting):
    done = setting.run()
    culprit = done.status.culprit
    assert done.verdict is Verdict.FAIL
    assert (culprit.module, culprit.layer, culprit.head, culprit.position) == (BLAMED, 1, 1, 5)
    assert (culprit.phase, culprit.confirmed) == (Phase.DECODE, True)
    assert "kv_at_fault" in culprit.branch
    output, inputs = culprit.trials
    assert (output.kind, output.module, output.healed) == ("output", BLAMED, True)
    assert (inputs.kind, inputs.module, inputs.healed) == ("inputs", "model.layers.0", False)
    assert output.l2_before > 10
    assert output.l2_after == pytest.approx(1.0, abs=0.2)
    assert output.guards_before > 0
    assert output.guards_after == 0
    assert inputs.l2_after == pytest.approx(inputs.l2_before)
    assert (setting.engine.opened, setting.engine.closed) == (1, 1), "one engine for everything"


def test_only_the_failing_prompts_are_looked_at_worst_first(setting):
    done = setting.run()
    (ctx,) = setting.tensors.contexts
    assert [prompt.index for prompt in ctx.prepared] == [2, 1]
    assert ctx.engine is setting.engine
    for position, index in enumerate((2, 1)):
        assert torch.equal(ctx.goldens["fp32_logits"][position], setting.goldens["fp32_logits"][index])
    escalation = done.status.escalation
    assert escalation.prompts == [2, 1]
    assert escalation.failing >= 2  # a guard on the whole run counts for every prompt
    assert escalation.plugins == ["kv_cache", "tensor_compare"]
    assert set(done.status.plugins["tensor_compare"].per_prompt) == {"1", "2"}


def test_clean_logits_are_left_alone(setting):
    setting.bad = {}
    done = setting.run()
    assert done.verdict is Verdict.PASS
    assert setting.tensors.contexts == setting.kv.contexts == []
    assert done.status.escalation is None
    assert done.status.culprit is None
    assert not [request for request in setting.engine.requests if request.request_id.startswith("confirm")]


def test_triage_can_be_switched_off(setting):
    done = setting.run(triage=False)
    assert done.verdict is not Verdict.PASS
    assert setting.tensors.contexts == []
    assert (done.status.escalation, done.status.culprit.module) == (None, None)


def test_module_patterns_reach_tensor_compare(setting):
    setting.run(modules=["model.layers.0-1"])
    assert setting.options == {"modules": ["model.layers.0-1"]}


def test_everything_is_in_the_files(setting):
    setting.run()
    run_dir = RunDir.at(setting.tmp_path / "run")
    status = run_dir.read(run_dir.prompt_analysis_json, PromptAnalysisStatus)
    assert status.culprit.confirmed is True
    assert len(status.culprit.trials) == 2
    text = (run_dir.prompt_analysis / "prompt_report.txt").read_text()
    assert BLAMED in text
    assert "confirmed" in text
    assert "prompts 2, 1" in text
    assert json.loads(run_dir.prompt_analysis_json.read_text())["culprit"]["trials"][0]["healed"] is True


def test_the_runs_headline_names_the_place_and_says_confirmed(setting):
    headline = conclude(None, setting.run().status).headline
    assert BLAMED in headline
    assert "layer 1, head 1, position 5" in headline
    assert "confirmed" in headline


def test_a_wrong_suspicion_is_not_confirmed_and_the_next_candidate_is_tried(setting):
    wrong = "model.layers.0.self_attn.q_proj"  # no other layer has it among the taps
    setting.tensors.make = lambda i: tensors(wrong, index=i, also=(BLAMED,), phase=Phase.DECODE)
    culprit = setting.run().status.culprit
    assert [(trial.kind, trial.module, trial.healed) for trial in culprit.trials] == [
        ("output", wrong, False), ("together", wrong, True), ("comparable", "model.layers.0.input_layernorm", False),
        ("output", BLAMED, True), ("inputs", "model.layers.0", False),
    ]  # fmt: skip
    assert (culprit.module, culprit.confirmed) == (BLAMED, True)
    assert any(wrong in text and "was named first" in text for text in culprit.contradictions)


def test_two_faults_are_confirmed_together_and_the_first_one_stays_named(setting):
    first = "model.layers.0.self_attn.q_proj"
    setting.all_of = {first, BLAMED}
    setting.tensors.make = lambda i: tensors(first, index=i, also=(BLAMED,))
    culprit = setting.run().status.culprit
    assert [(trial.kind, trial.healed) for trial in culprit.trials] == [
        ("output", False), ("together", True), ("comparable", False), ("output", False),
    ]  # fmt: skip
    assert (culprit.module, culprit.confirmed) == (first, True)
    assert "all 2 modules that are wrong by themselves replaced together, the error vanishes" in culprit.confirmation


def test_what_nothing_cures_is_not_confirmed(setting):
    setting.cured_by = set()
    culprit = setting.run().status.culprit
    assert culprit.confirmed is False
    assert not any(trial.healed for trial in culprit.trials)


def test_code_that_is_wrong_in_every_layer_is_confirmed_by_replacing_all_of_them(setting):
    first = "model.layers.0.self_attn.attn"
    setting.all_of = {first, BLAMED}
    setting.tensors.make = lambda i: tensors(first, index=i, also=(BLAMED,))
    culprit = setting.run().status.culprit
    assert [(trial.kind, trial.module, trial.healed) for trial in culprit.trials] == [
        ("output", first, False), ("every_layer", first, True), ("comparable", "model.layers.0.self_attn.key", False),
    ]  # fmt: skip
    assert (culprit.module, culprit.confirmed) == (first, True)
    assert "in all 2 layers" in culprit.confirmation


def test_an_error_that_vanishes_wherever_reference_tensors_are_put_in_confirms_nothing(setting):
    first = "model.layers.0.self_attn.attn"
    setting.heals_with = 2  # a row that reacts to every rounding
    setting.tensors.make = lambda i: tensors(first, index=i)
    culprit = setting.run().status.culprit
    assert [(trial.kind, trial.healed) for trial in culprit.trials] == [
        ("output", False), ("every_layer", True), ("comparable", True),
    ]  # fmt: skip
    assert (culprit.module, culprit.confirmed) == (first, False)
    assert "it vanishes, too" in culprit.confirmation
    assert "nothing is proven" in culprit.confirmation


@pytest.mark.parametrize(
    ("before", "after", "control", "proven"),
    [(1.94, 1.06, 1.16, True), (1.94, 1.06, 1.07, False), (1.94, 0.9, 0.95, False), (0.95, 1.0, 1.3, False)],
)
def test_of_two_replacements_that_heal_the_suspects_must_leave_clearly_less(before, after, control, proven):
    made = {"module": BLAMED, "prompt": 0, "l2_before": before, "healed": True}
    trial = ReplacementTrial(kind="together", l2_after=after, **made)
    other = ReplacementTrial(kind="comparable", l2_after=control, **made)
    assert outdoes(trial, other, load_triage_tree()) is proven


def test_a_comparable_module_that_cannot_be_replaced_is_passed_over(setting):
    first = "model.layers.0.self_attn.attn"
    setting.all_of = {first, BLAMED}
    setting.injections = HandMade(refused=("model.layers.0.self_attn.key",))
    setting.tensors.make = lambda i: tensors(first, index=i, also=(BLAMED,))
    *_, control = setting.run().status.culprit.trials
    assert (control.kind, control.module, control.healed) == ("comparable", "model.layers.0.self_attn.q_proj", False)


def test_a_place_behind_the_fault_is_not_confirmed(setting):
    setting.tensors.make = lambda i: tensors("model.norm", index=i)
    setting.kv.make = lambda i: kv(index=i)
    culprit = setting.run().status.culprit
    assert [(trial.kind, trial.healed) for trial in culprit.trials] == [("output", True), ("inputs", True)]
    assert culprit.confirmed is False
    assert "lies in front of model.norm" in culprit.confirmation


def test_logits_are_never_replaced_to_prove_the_output_head(setting):
    setting.cured_by = set()
    setting.tensors.make = lambda i: tensors("lm_head", index=i)
    culprit = setting.run().status.culprit
    assert [(trial.kind, trial.module) for trial in culprit.trials] == [("inputs", "model.norm")]
    assert culprit.confirmed is True


def test_nothing_is_confirmed_by_an_engine_that_cannot_replace(setting):
    setting.engine.able["replacement"] = False
    culprit = setting.run().status.culprit
    assert (culprit.module, culprit.confirmed) == (BLAMED, None)
    assert "cannot replace tensors" in culprit.confirmation


def test_a_control_that_is_not_possible_is_said(setting):
    setting.injections = HandMade(refused=("model.layers.0",))
    culprit = setting.run().status.culprit
    assert culprit.confirmed is True
    assert "model.layers.0 cannot be replaced in this engine" in culprit.confirmation


def test_a_missing_capability_is_not_measured_with_the_reason(setting):
    setting.engine.able["hooks"] = False
    done = setting.run()
    assert setting.tensors.contexts == []
    assert done.status.escalation.not_measured == {"tensor_compare": "engine fake has no capability `hooks`"}
    assert "modules_not_measured" in done.status.culprit.branch
    assert done.status.culprit.layer == 1, "the cache still names the layer"
    assert done.outcome is Outcome.NUMERICS


@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), NotMeasuredError("no map"), EngineDiedError("gone", log_tail="x")]
)
def test_a_witness_that_fails_costs_only_itself(setting, error):
    setting.tensors.fail = error
    done = setting.run()
    assert (done.verdict, done.outcome) == (Verdict.FAIL, Outcome.NUMERICS)
    assert done.status.plugins["tensor_compare"].outcome is Outcome.NOT_MEASURED
    assert done.status.escalation.not_measured["tensor_compare"]
    assert done.status.culprit.layer == 1
    assert conclude(None, done.status).exit_code == 2


def test_an_engine_that_dies_in_the_experiment_leaves_the_culprit_unconfirmed(setting):
    def answer(request):
        if request.replacements:
            raise EngineDiedError("the engine is gone", log_tail="last words")
        return setting.rows(request)

    setting.engine.answer = answer
    done = setting.run()
    assert done.outcome is Outcome.NUMERICS
    assert done.status.culprit.confirmed is None
    assert "the engine is gone" in done.status.culprit.confirmation
    assert done.status.log_tail == "last words"


def test_witnesses_that_were_asked_for_by_name_run_once_on_all_prompts(setting):
    done = setting.run(["logit_validation", "kv_cache", "tensor_compare"])
    assert [prompt.index for prompt in setting.kv.contexts[0].prepared] == [0, 1, 2, 3]
    assert len(setting.tensors.contexts) == len(setting.kv.contexts) == 1
    assert done.status.escalation is None
    assert done.status.culprit.confirmed is True


def test_a_second_call_into_the_directory_uses_the_logits_of_the_first(setting):
    setting.run(triage=False)
    done = setting.run(["tensor_compare"])
    assert (done.status.culprit.module, done.status.culprit.confirmed) == (BLAMED, True)
    assert set(done.status.plugins) == {"logit_validation", "tensor_compare", "kv_cache"}


def of(index, verdict, l2, length=4):
    made = result([row(t, l2=l2) for t in range(4)], verdict, index=index)
    return made.model_copy(update={"prompt_token_ids": [1] * length, "token_ids": [1] * 4})


def test_which_prompts_are_the_worst():
    tree = load_triage_tree()
    bound = int(tree.bounds["escalation_positions"])
    ranked: list[PromptResult] = [
        of(0, Verdict.SUSPECT, 9.0), of(1, Verdict.FAIL, 2.0), of(2, Verdict.FAIL, 5.0), of(3, Verdict.PASS, 1.0),
        of(4, Verdict.FAIL, 50.0, length=bound),
    ]  # fmt: skip
    assert [one.index for one in worst_prompts(ranked, tree)] == [2, 1]
    assert [one.index for one in worst_prompts(ranked[4:], tree)] == [4], "rather a long one than none"
    assert worst_prompts(ranked[3:4], tree) == []
