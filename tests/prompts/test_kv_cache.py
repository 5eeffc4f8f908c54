"""KvCachePlugin: what it asks of the engine, what it says of the answers, what it writes, and what it leaves behind."""

from __future__ import annotations

import json
import math
import shutil
from collections import namedtuple

import pytest
import torch
from kv_fakes import HEADS, LAYERS, SPEC, WIDTH, KvEngine, Prepared, caches
from safetensors import safe_open

from accuracy_core import KvCachePlugin
from accuracy_core.errors import ConfigurationError, EngineDiedError, NotMeasuredError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts import PLUGIN_REGISTRY, PluginContext
from accuracy_core.prompts.prepared import PreparedPrompt
from accuracy_core.schemas import KvPattern, KvResult, Phase, RunDir

FORCED = [7, 8, 9, 10, 11]
PROMPTS = [[5] * 20, [6] * 28]
POSITIONS = [len(prompt) + len(FORCED) - 1 for prompt in PROMPTS]


class Case:
    """A context over two prompts, the plugin, and the engine."""

    def __init__(self, tmp_path, change=None, **options) -> None:
        made = [caches(count, seed) for seed, count in enumerate(POSITIONS)]
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        self.engine = KvEngine(self.scratch, {f"kv-{i}": made[i][1] for i in range(2)}, change, **options)
        self.plugin = Prepared([golden for golden, _ in made], FORCED, tmp_path)
        self.ctx = PluginContext(
            checkpoint="embedded",
            prompts=tuple(map(tuple, PROMPTS)),
            prepared=tuple(
                PreparedPrompt(index=i, token_ids=prompt, source="token_ids") for i, prompt in enumerate(PROMPTS)
            ),
            server_config=SPEC,
            output_length=len(FORCED),
            output_dir=RunDir.at(tmp_path / "run").create(),
            dtype="bfloat16",
            engine=self.engine,
        )

    def run(self):
        self.plugin.pre_llm(self.ctx)
        results = self.plugin.run(self.ctx)
        self.plugin.save(self.ctx, results)
        return results

    def saved(self, index) -> KvResult:
        return KvResult.from_json(self.ctx.output_dir.prompt_result(index, "kv_cache").read_text())

    def page(self, index) -> str:
        return (self.ctx.output_dir.prompt(index) / "kv_analysis" / "kv_report.html").read_text()


def shift(layer):
    """Decode writes one slot further in one layer."""

    def change(tensors):
        for which in ("key", "value"):
            cache = tensors[f"kv.{layer}.{which}"]
            start = cache.shape[1] - len(FORCED) + 1
            cache[:, start + 1 :] = cache[:, start:-1].clone()

    return change


def test_clean_caches_pass_and_leave_their_files(tmp_path):
    case = Case(tmp_path)
    results = case.run()
    status = results["status"]
    assert results["passed"] is True
    assert (status.verdict, status.outcome) == (Verdict.PASS, Outcome.NUMERICS)
    assert status.per_prompt == {"0": Verdict.PASS, "1": Verdict.PASS}
    assert results["culprit"] is None
    for index, request in enumerate(case.engine.asked):
        assert request.capture.kv
        assert (request.prompt_token_ids, request.forced_token_ids) == (PROMPTS[index], FORCED)
        saved = case.saved(index)
        assert (saved.positions, saved.prompt_length, saved.block_size) == (POSITIONS[index], len(PROMPTS[index]), 16)
        assert len(saved.heads) == LAYERS * HEADS * 2
        assert [len(row) for row in saved.position_ratio["key"]] == [POSITIONS[index]] * LAYERS
        assert saved.written is None
        folder = case.ctx.output_dir.prompt(index) / "kv_analysis"
        with safe_open(str(folder / "kv_caches.safetensors"), "pt") as file:
            assert len(list(file.keys())) == 3 * LAYERS * 2
            assert torch.equal(file.get_tensor("target.kv.3.key"), case.engine.targets[f"kv-{index}"]["kv.3.key"])
            assert file.get_tensor("fp32.kv.0.value").dtype is torch.float32


def test_one_prompt_at_a_time_is_on_the_disk(tmp_path):
    case = Case(tmp_path, ranks=2)
    case.run()
    assert case.engine.most_files == 2  # one per rank
    assert list(case.scratch.iterdir()) == []


def test_raw_caches_can_be_left_out(tmp_path):
    case = Case(tmp_path)
    case.plugin.save_caches = False
    case.run()
    assert not (case.ctx.output_dir.prompt(0) / "kv_analysis" / "kv_caches.safetensors").exists()
    assert (case.ctx.output_dir.prompt(0) / "kv_analysis" / "kv_report.html").exists()


def test_a_shifted_cache_is_the_culprit(tmp_path):
    results = Case(tmp_path, shift(2)).run()
    assert results["status"].verdict is Verdict.FAIL
    culprit = results["culprit"]
    assert (culprit.module, culprit.layer, culprit.phase) == ("model.layers.2.self_attn.attn", 2, Phase.DECODE)
    assert (culprit.prompt, culprit.head, culprit.position) == (0, 0, 21)
    assert "written +1 slots away" in " ".join(culprit.evidence)


def test_taps_tell_the_cache_from_what_it_was_given(tmp_path):
    def scale(tensors):
        tensors["kv.1.key"] *= 1.25

    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    cache = Case(tmp_path / "a", scale, given=True).run()
    before = Case(tmp_path / "b", scale, given=True, changed_before=True).run()
    assert cache["culprit"].module == "model.layers.1.self_attn.attn"
    assert cache["kv_results"][0].written is False
    assert before["status"].verdict is Verdict.FAIL
    assert before["culprit"] is None
    result = before["kv_results"][0]
    assert (result.pattern, result.cache_fault, result.written) == (KvPattern.SCALE, False, True)


def test_ranks_are_put_together(tmp_path):
    assert Case(tmp_path, ranks=2, given=True).run()["passed"] is True


@pytest.mark.parametrize("place", [(0, 0), (1, 17), (1, -1)])
def test_nan_fails_and_is_named(tmp_path, place):
    head, position = place

    def spoil(tensors):
        tensors["kv.3.value"][head, position, 3] = math.nan

    results = Case(tmp_path, spoil).run()
    assert results["passed"] is False
    bad = results["kv_results"][0].first_bad
    assert (bad.layer, bad.which, bad.head, bad.position) == (3, "value", head, position % POSITIONS[0])


def test_a_shorter_cache_fails_and_names_both_shapes(tmp_path):
    def cut(tensors):
        for name in list(tensors):
            tensors[name] = tensors[name][:, :-2].contiguous()

    case = Case(tmp_path, cut)
    results = case.run()
    assert results["status"].verdict is Verdict.FAIL
    detail = results["kv_results"][0].guards[0].detail
    assert str((HEADS, POSITIONS[0] - 2, WIDTH)) in detail
    assert str((HEADS, POSITIONS[0], WIDTH)) in detail


def test_a_missing_layer_fails_unless_the_engine_says_why(tmp_path):
    def drop(tensors):
        del tensors["kv.3.key"], tensors["kv.3.value"]

    def explain(result):
        return result.model_copy(update={"missing": {f"kv.3.{w}": "a latent cache" for w in ("key", "value")}})

    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    silent = Case(tmp_path / "a", drop).run()
    assert silent["status"].verdict is Verdict.FAIL
    assert "of 3 layers, the reference of 4" in silent["kv_results"][0].guards[0].detail
    told = Case(tmp_path / "b", drop, answer=explain).run()
    assert told["passed"] is None
    assert told["status"].outcome is Outcome.NOT_MEASURED
    assert "a latent cache" in told["findings"][0].evidence


def test_rows_that_left_the_window_are_missing_and_not_wrong(tmp_path):
    def forget(tensors):
        for which in ("key", "value"):
            tensors[f"kv.0.{which}"][:, :8] = math.nan

    def tell(result):
        text = "not in the cache: positions 0-7"
        return result.model_copy(update={"missing": {"kv.0.key": text, "kv.0.value": text}})

    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    case = Case(tmp_path / "a", forget, answer=tell)
    assert case.run()["passed"] is True
    assert all(math.isnan(value) for value in case.saved(0).position_ratio["key"][0][:8])
    assert Case(tmp_path / "b", forget).run()["passed"] is False


def test_a_prompt_that_fails_costs_only_itself(tmp_path):
    def fail_first(result):
        return result.model_copy(update={"error": "out of blocks"}) if result.request_id == "kv-0" else result

    results = Case(tmp_path, answer=fail_first).run()
    assert results["status"].errors == {"0": "out of blocks"}
    assert results["status"].per_prompt == {"1": Verdict.PASS}
    assert results["passed"] is False
    assert results["kv_results"][0].outcome is Outcome.NOT_MEASURED


def test_tokens_that_were_not_followed_are_no_comparison(tmp_path):
    results = Case(tmp_path, answer=lambda r: r.model_copy(update={"token_ids": [1, 2, 3, 4, 5]})).run()
    assert results["passed"] is None
    assert "did not follow" in results["status"].errors["1"]


def test_an_engine_without_the_capability_is_not_measured(tmp_path):
    case = Case(tmp_path, kv=False)
    with pytest.raises(NotMeasuredError, match="kv_cache"):
        KvCachePlugin().pre_llm(case.ctx)
    case.plugin.pre_llm(case.ctx)
    with pytest.raises(NotMeasuredError, match="kv_cache"):
        case.plugin.run(case.ctx)


def test_a_dead_engine_is_let_through(tmp_path):
    with pytest.raises(EngineDiedError):
        Case(tmp_path, die_at=1).run()


def test_captures_that_would_fill_the_disk_are_refused_with_the_figure(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 100_000, 100_000))
    ctx = Case(tmp_path).ctx
    with pytest.raises(ConfigurationError, match=r"would take 0\.0 GB in .* where 0\.0 GB are free"):
        KvCachePlugin(goldens_dir=tmp_path).pre_llm(ctx)
    # 4 layers x 2 heads x 32 x K and V x 56 positions: 28,672 numbers of 4 + 2 and of 4 + 2 + 2 bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 0, 10**6))
    KvCachePlugin()._check_room(ctx, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 0, (28_672 * 14 * 10 // 9) - 10))
    with pytest.raises(ConfigurationError):
        KvCachePlugin()._check_room(ctx, tmp_path)
    KvCachePlugin(save_caches=False)._check_room(ctx, tmp_path)


def test_the_page_stands_alone_and_escapes(tmp_path):
    attack = "</script><script>alert(1)</script>"

    def tell(result):
        return result.model_copy(update={"missing": {"kv.0.key": f"{attack} positions 0"}})

    case = Case(tmp_path, shift(1), answer=tell)
    case.run()
    page = case.page(0)
    assert attack not in page
    assert "&lt;/script&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page
    assert "First bad place: K of layer 1, head 0, position 21 (decode)" in page
    assert "The cache itself is at fault" in page
    assert "prefers-color-scheme: dark" in page
    text = page.split("data-kv-data>")[1].split("</script>")[0]
    data = json.loads(text)
    assert data["bad"]["layer"] == 1
    assert len(data["sides"]["key"]["positions"]) == LAYERS
    assert data["prompt"] == len(PROMPTS[0])


def test_it_is_the_documented_plugin():
    assert PLUGIN_REGISTRY["kv_cache"] is KvCachePlugin
    assert KvCachePlugin().needs_shared_llm
