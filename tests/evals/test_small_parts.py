"""Request cache, prompt encoding, sampling defaults, endpoint, registry."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError, InfrastructureError, NotMeasuredError
from accuracy_core.evals.analysis import run_task_analysis
from accuracy_core.evals.analyzer import (
    ANALYZER_REGISTRY,
    LmEvalAnalyzer,
    TaskAnalyzer,
    get_analyzer,
    register_analyzer,
)
from accuracy_core.evals.endpoint import server_root
from accuracy_core.evals.prompt_encoding import PromptEncoder
from accuracy_core.evals.request_cache import RequestCache
from accuracy_core.evals.request_log import read_records
from accuracy_core.evals.sampling_defaults import overridden_defaults
from tests.evals.results_maker import sample, write_run


def test_cache_is_apart_per_identity_task_and_payload(tmp_path: Path) -> None:
    key = RequestCache.key("/v1/completions", {"prompt": [[0, 5]], "seed": 1})
    assert key != RequestCache.key("/v1/completions", {"prompt": [[0, 5]], "seed": 2})
    assert key != RequestCache.key("/v1/chat/completions", {"prompt": [[0, 5]], "seed": 1})
    one, other = RequestCache(tmp_path, "model A"), RequestCache(tmp_path, "model B")
    one.put("t", key, {"text": "é"})
    assert one.get("t", key) == {"text": "é"}
    assert one.get("t/2", key) is None
    assert other.get("t", key) is None
    assert one.path("a/b") != one.path("a_b")
    one.close()
    assert RequestCache(tmp_path, "model A").get("t", key) == {"text": "é"}
    with pytest.raises(ValueError, match="identity"):
        RequestCache(tmp_path, "")


def test_damaged_cache_counts_as_missing(tmp_path: Path) -> None:
    cache = RequestCache(tmp_path, "model")
    cache.put("t", "k", {"text": "x"})
    cache.close()
    with sqlite3.connect(cache.path("t")) as database:
        database.execute("UPDATE answers SET answer = '{cut'")
    assert cache.get("t", "k") is None
    cache.close()
    for extra in cache.path("t").parent.glob("*.sqlite*"):
        extra.write_bytes(b"no database at all" * 100)
    assert cache.get("t", "k") is None
    with pytest.raises(InfrastructureError, match="cannot be written"):
        cache.put("t", "k", {"text": "y"})


class Tokenizer:
    """Characters as ids; puts `before` and `after` around a text when special tokens are wanted."""

    bos_token, bos_token_id = "<s>", 0

    def __init__(self, before: list[int], after: list[int]) -> None:
        self._before, self._after = before, after

    def __call__(self, text: Any, add_special_tokens: bool, return_attention_mask: bool = False) -> Any:
        many = [self._one(item, add_special_tokens) for item in ([text] if isinstance(text, str) else text)]
        return type("Encoding", (), {"input_ids": many[0] if isinstance(text, str) else many})

    def _one(self, text: str, special: bool) -> list[int]:
        ids = [0 if character == "<" else ord(character) for character in text]
        return self._before + ids + self._after if special else ids

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"<{number}>" for number in ids]


@pytest.mark.parametrize("before", [[], [0], [3, 0]])
@pytest.mark.parametrize("after", [[], [1]])
def test_prefix_once_and_nothing_behind(before: list[int], after: list[int]) -> None:
    encoder = PromptEncoder.for_tokenizer(Tokenizer(before, after))
    assert encoder.encode("xy") == [*before, 120, 121]
    assert encoder.encode_all(["x", "y"]) == [[*before, 120], [*before, 121]]
    assert encoder.keep_prefix([9, 9, 9, 120]) == [*before, *[9, 9, 9, 120][len(before) :]]
    assert encoder.describe()["prefix_ids"] == before


def test_a_prompt_with_bos_gets_no_second_one() -> None:
    encoder = PromptEncoder.for_tokenizer(Tokenizer([0], []))
    assert encoder.encode("<xy") == [0, 120, 121]


def test_a_tokenizer_that_is_not_understood() -> None:
    class Odd(Tokenizer):
        def _one(self, text: str, special: bool) -> list[int]:
            return [5] if special else [6, 7]

    with pytest.raises(ConfigurationError, match=r"\[6, 7\].*\[5\]"):
        PromptEncoder.for_tokenizer(Odd([], []))


def test_sampling_defaults_of_a_checkpoint(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 0, "repetition_penalty": 1.1, "min_p": 0.0, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert overridden_defaults(str(tmp_path)) == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}
    assert overridden_defaults(str(tmp_path / "none")) == {}
    assert overridden_defaults(None) == {}
    (tmp_path / "generation_config.json").write_text("[]")
    assert overridden_defaults(str(tmp_path)) == {}


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/v1/completions", "/v1/chat/completions"])
def test_server_root(tail: str) -> None:
    assert server_root(f"http://127.0.0.1:8000{tail}") == "http://127.0.0.1:8000"
    assert server_root(f"https://host/prefix{tail}") == "https://host/prefix"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://"])
def test_no_server_root(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no http address"):
        server_root(url)


def test_request_log_skips_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"task": "t", "doc_id": 1, "kind": "generate_until"}\n{"task": "t", "do')
    assert [record.doc_id for record in read_records(path)] == [1]


def test_registry(tmp_path: Path) -> None:
    assert isinstance(get_analyzer("lm_eval"), LmEvalAnalyzer)
    with pytest.raises(ConfigurationError, match="there are: lm_eval, longbench"):
        get_analyzer("helm")
    with pytest.raises(NotMeasuredError, match="LongBench"):
        run_task_analysis(get_analyzer("longbench"), tmp_path, {}, tmp_path / "o")

    class Mine(LmEvalAnalyzer):
        name = "mine"

    try:
        assert register_analyzer(Mine) is Mine
        assert isinstance(get_analyzer("mine"), TaskAnalyzer)
        with pytest.raises(ConfigurationError, match="registered already"):
            register_analyzer(type("Other", (LmEvalAnalyzer,), {"name": "mine"}))
    finally:
        ANALYZER_REGISTRY.pop("mine")


def test_without_thresholds_nothing_is_judged(tmp_path: Path) -> None:
    write_run(tmp_path / "r", {"sums": [sample(0, 1.0), sample(1, 0.0)]})
    analysis = run_task_analysis(LmEvalAnalyzer(), str(tmp_path / "r"), {}, tmp_path / "o")
    assert analysis.passed is None
    assert analysis.status.outcome == "not_measured"
    assert [prompt.doc_id for prompt in analysis.deviated_prompts] == [1]
    assert any("no threshold was given" in text for text in analysis.warnings)


def test_bad_arguments_of_the_analysis(tmp_path: Path) -> None:
    write_run(tmp_path / "r", {"sums": [sample(0, 1.0)]})
    with pytest.raises(ConfigurationError, match="do not exist"):
        run_task_analysis(LmEvalAnalyzer(), tmp_path / "none", {}, tmp_path / "o")
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        run_task_analysis(LmEvalAnalyzer(), tmp_path / "r", [0.5], tmp_path / "o")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="margin"):
        run_task_analysis(LmEvalAnalyzer(), tmp_path / "r", {}, tmp_path / "o", margin=0)


def test_documented_usage(tmp_path: Path) -> None:
    """Slicing, a results file, and the dict of the documented API."""
    write_run(tmp_path / "r", {"gsm": [sample(doc, float(doc > 4), name="flexible-extract") for doc in range(9)]})
    for source in (tmp_path / "r", str(next((tmp_path / "r").glob("results_*")))):
        result = run_task_analysis(
            LmEvalAnalyzer(),
            input_task_results=source,
            thresholds={"exact_match,flexible-extract": 0.435},
            output_dir=str(tmp_path / "accuracy_report"),
        )
        assert result.passed is True
        assert result.scores == {"gsm/exact_match,flexible-extract": pytest.approx(4 / 9)}
        assert result.thresholds == {"exact_match,flexible-extract": 0.435}
        assert len(result.deviated_prompts[:3]) == 3
        assert len(result.deviated_prompts) == 5
