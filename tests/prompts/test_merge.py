"""Two calls into one output directory merge."""

from __future__ import annotations

import pytest
import torch
from prompt_fakes import SPEC, VOCAB, FakeEngine, FakeTokenizer, clean_rows, make_goldens

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts import PromptPlugin, run_prompt_analysis
from accuracy_core.prompts.merge import merge_plugin, overall
from accuracy_core.schemas import Culprit, FaultSpec, Phase, PluginStatus


class Own(PromptPlugin):
    """As tensor compare: its own engine, its own call."""

    name = "own"
    needs_shared_llm = False

    def __init__(self, passed=True, culprit=None):
        self.passed, self.culprit = passed, culprit

    def run(self, ctx):
        self.indices = [prompt.index for prompt in ctx.prepared]
        return {"passed": self.passed, "culprit": self.culprit}


def logits(tmp_path, prompts, *, noise=0.0, spec=SPEC, **more):
    goldens = make_goldens(len(prompts), 8)
    rows = [clean_rows(goldens, i) for i in range(len(prompts))]
    rows = [r + noise * torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3)) for r in rows]
    return run_prompt_analysis(
        spec, prompts, ["logit_validation"], tmp_path / "run", 8, goldens=goldens, tokenizer=FakeTokenizer(),
        engine=FakeEngine(tmp_path, rows), **more,
    )  # fmt: skip


def own(tmp_path, prompts, plugin, spec=SPEC):
    return run_prompt_analysis(spec, prompts, [plugin], tmp_path / "run", 3, tokenizer=FakeTokenizer())


def test_the_documented_second_call_adds_its_plugin(tmp_path):
    logits(tmp_path, ["ab", "cd"])
    result = own(tmp_path, ["ab", "cd"], Own())
    assert set(result.status.plugins) == {"logit_validation", "own"}
    assert set(result.plugin_results) == {"own"}
    assert result.verdict is Verdict.PASS
    assert result.status.n_prompts == 2


def test_a_failure_of_either_call_is_the_verdict(tmp_path):
    logits(tmp_path, ["ab"])
    assert own(tmp_path, ["ab"], Own(passed=False)).verdict is Verdict.FAIL
    assert logits(tmp_path, ["ab"]).verdict is Verdict.FAIL


def test_prompts_keep_their_numbers(tmp_path):
    logits(tmp_path, ["ab", "cd"])
    plugin = Own()
    result = own(tmp_path, ["zz", "cd"], plugin)
    assert plugin.indices == [2, 1]
    assert result.status.n_prompts == 3
    assert (tmp_path / "run/prompt_analysis/prompt_0/prompt.txt").read_text() == "ab"
    assert (tmp_path / "run/prompt_analysis/prompt_2/prompt.txt").read_text() == "zz"


def test_the_same_prompt_twice_is_analysed_once(tmp_path):
    plugin = Own()
    own(tmp_path, ["ab", "ab", "c"], plugin)
    assert plugin.indices == [0, 1]


def test_a_plugin_run_again_replaces_its_own_prompts_only(tmp_path):
    logits(tmp_path, ["ab"], noise=1.0)
    assert logits(tmp_path, ["cd"]).verdict is Verdict.FAIL  # prompt 0 still fails
    result = logits(tmp_path, ["ab"])
    assert result.status.plugins["logit_validation"].per_prompt == {"0": Verdict.PASS, "1": Verdict.PASS}
    assert result.verdict is Verdict.PASS
    assert result.status.culprit is None


def test_the_more_specific_culprit_wins(tmp_path):
    first = logits(tmp_path, ["ab"], noise=1.0)
    assert first.status.culprit.module is None
    module = Culprit(phase=Phase.PREFILL, module="model.layers.1.mlp")
    assert own(tmp_path, ["ab"], Own(False, module)).status.culprit.module == "model.layers.1.mlp"


def test_another_target_never_mixes_in(tmp_path):
    logits(tmp_path, ["ab"])
    faulty = SPEC.model_copy(update={"fault": FaultSpec(name="kv-slot")})
    with pytest.raises(ConfigurationError, match="another target"):
        own(tmp_path, ["ab"], Own(), spec=faulty)
    other_length = SPEC.model_copy(update={"max_model_len": 64})
    own(tmp_path, ["ab"], Own(), spec=other_length)


def test_fresh_replaces_what_is_there(tmp_path):
    logits(tmp_path, ["ab", "cd"], noise=1.0)
    faulty = SPEC.model_copy(update={"fault": FaultSpec(name="kv-slot")})
    result = logits(tmp_path, ["zz"], spec=faulty, fresh=True)
    assert result.status.n_prompts == 1
    assert result.verdict is Verdict.PASS
    assert not (tmp_path / "run/prompt_analysis/prompt_1").exists()


def status(verdict, **more):
    return PluginStatus(plugin="p", verdict=verdict, **more)


def test_merging_drops_errors_of_prompts_that_were_looked_at_again():
    old = status(Verdict.PASS, per_prompt={"0": Verdict.PASS, "1": None}, errors={"1": "broke", "plugin": "broke"})
    new = status(Verdict.PASS, per_prompt={"1": Verdict.PASS})
    done = merge_plugin(old, new)
    assert done.errors == {}
    assert done.per_prompt == {"0": Verdict.PASS, "1": Verdict.PASS}


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        ([(Outcome.NUMERICS, Verdict.PASS)], (Outcome.NUMERICS, Verdict.PASS)),
        ([(Outcome.NUMERICS, Verdict.PASS), (Outcome.NUMERICS, Verdict.SUSPECT)], (Outcome.NUMERICS, Verdict.SUSPECT)),
        ([(Outcome.NUMERICS, Verdict.FAIL), (Outcome.INFRASTRUCTURE, None)], (Outcome.NUMERICS, Verdict.FAIL)),
        ([(Outcome.NUMERICS, Verdict.PASS), (Outcome.INFRASTRUCTURE, None)], (Outcome.INFRASTRUCTURE, Verdict.PASS)),
        ([(Outcome.NUMERICS, Verdict.PASS), (Outcome.NOT_MEASURED, None)], (Outcome.NUMERICS, Verdict.PASS)),
        ([(Outcome.NOT_MEASURED, None)], (Outcome.NOT_MEASURED, None)),
        ([], (Outcome.NOT_MEASURED, None)),
    ],
)
def test_outcome_over_plugins(parts, want):
    plugins = {str(i): PluginStatus(plugin=str(i), outcome=o, verdict=v) for i, (o, v) in enumerate(parts)}
    assert overall(plugins) == want
