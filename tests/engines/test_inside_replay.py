"""Replaying and probing against a stand-in for `vllm.LLM` whose logits are a fixed function of the prefix."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from . import inside_stubs

VOCAB = 11


def row(prefix: list[int]) -> torch.Tensor:
    """Raw logits after `prefix`; their argmax is the sum of the prefix modulo the vocabulary."""
    logits = torch.linspace(-1, 1, VOCAB).roll(len(prefix))
    logits[sum(prefix) % VOCAB] += 5
    return logits


class FakeLLM:
    """`processor`: ignores it, records only, or records and forces; `logprobs`: raw, normalised, top 3, or refused."""

    def __init__(self, *, processor: str = "forces", logprobs: str = "raw", empty_after: int | None = None) -> None:
        self.processor = processor
        self.logprobs = logprobs
        self.empty_after = empty_after
        self.asked: list[tuple[int, int]] = []
        self.recorded: dict[str, list[torch.Tensor]] = {}

    def generate(self, prompts: list[dict[str, Any]], params: Any, use_tqdm: bool) -> list[Any]:
        all_params = params if isinstance(params, list) else [params] * len(prompts)
        return [self._one(prompt, own) for prompt, own in zip(prompts, all_params, strict=True)]

    def _one(self, prompt: dict[str, Any], params: Any) -> Any:
        prefix = list(prompt["prompt_token_ids"])
        self.asked.append((len(prefix), params.max_tokens))
        extra = params.extra_args or {}
        force = extra.get("assay_force", []) if self.processor == "forces" else params.trace_decode_token_ids or []
        count = 0 if self.empty_after is not None and len(prefix) >= self.empty_after else params.max_tokens
        rows: list[torch.Tensor] = []
        tokens: list[int] = []
        for index in range(count):
            rows.append(row(prefix))
            tokens.append(force[index] if index < len(force) else int(rows[-1].argmax()))
            prefix.append(tokens[-1])
        if self.processor != "ignored" and "assay_id" in extra:
            self.recorded[extra["assay_id"]] = rows
        logprobs = None if params.logprobs is None else [self._entries(item) for item in rows]
        output = types.SimpleNamespace(token_ids=tokens, logprobs=logprobs)
        prompt_logprobs = None if params.prompt_logprobs is None else [None, {1: 0.0}]
        return types.SimpleNamespace(outputs=[output], prompt_logprobs=prompt_logprobs)

    def _entries(self, logits: torch.Tensor) -> dict[int, Any]:
        if self.logprobs == "refused":
            raise ValueError("logprobs are not supported")
        values = logits if self.logprobs == "raw" else logits.log_softmax(-1)
        order = values.argsort(descending=True).tolist()
        order = order[:3] if self.logprobs == "top 3" else order
        return {token: types.SimpleNamespace(logprob=values[token].item()) for token in order}

    def collective_rpc(self, method: str, args: tuple[str, list[int], str]) -> list[Any]:
        """Two ranks: the first has nothing, the second, as the last pipeline stage, has the rows."""
        assert method == "assay_take"
        name, _tokens, path = args
        rows = self.recorded.pop(name, [])
        nothing = {"rank": 0, "rows": 0, "path": None, "error": ""}
        if not rows:
            return [nothing, None]
        from safetensors.torch import save_file

        logits = torch.stack(rows)
        save_file({"logits": logits}, f"{path}.rank1")
        argmax = logits.argmax(-1).tolist()
        return [dict(nothing, rank=1, rows=len(rows), argmax=argmax, path=f"{path}.rank1", names=["logits"]), nothing]


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Any:
    inside_stubs.install(monkeypatch)
    from assay_inside import replay

    return replay


def item(replay: Any, forced: list[int], count: int, path: str) -> Any:
    return replay.Item("a", [1, 2], forced, count, path)


def expected(prompt: list[int], forced: list[int]) -> torch.Tensor:
    return torch.stack([row(prompt + forced[:index]) for index in range(len(forced))])


# after [1, 2] the stand-in's own tokens are 3, 6, 1, 2, 4, 8 …
OWN = [3, 6, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("forced", "asked"),
    [
        (OWN, [(2, 6)]),
        ([3, 6, 1, 0, 4, 8], [(2, 6), (6, 2), (7, 1)]),
        ([9, 9, 9], [(2, 3), (3, 2), (4, 1)]),
        ([3, 6, 9], [(2, 3)]),
    ],
    ids=["never differs", "differs in the middle", "differs everywhere", "differs at the last token"],
)
def test_reprompting_asks_only_for_what_is_missing(
    replay: Any, tmp_path: Path, forced: list[int], asked: list[tuple[int, int]]
) -> None:
    llm = FakeLLM()
    path = str(tmp_path / "rows.safetensors")
    result = replay.Replayer(llm, VOCAB).reprompted(item(replay, forced, len(forced), path))
    assert llm.asked == asked
    rows = load_file(path)["logits"]
    assert torch.equal(rows, expected([1, 2], forced))
    assert result["argmax_ids"] == rows.argmax(-1).tolist() == result["token_ids"]


def test_reprompting_without_a_trace_generates_freely(replay: Any, tmp_path: Path) -> None:
    result = replay.Replayer(FakeLLM(), VOCAB).reprompted(item(replay, [], 6, str(tmp_path / "rows")))
    assert result["token_ids"] == OWN


@pytest.mark.parametrize("after", [2, 3])
def test_an_empty_generation_ends_with_an_error(replay: Any, tmp_path: Path, after: int) -> None:
    llm = FakeLLM(empty_after=after)
    with pytest.raises(replay.EmptyGeneration, match=f"after token {after - 2} of 3"):
        replay.Replayer(llm, VOCAB).reprompted(item(replay, [9, 9, 9], 3, str(tmp_path / "rows")))


def test_incomplete_rows_are_an_error_not_a_guess(replay: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"3 of {VOCAB} log-probabilities"):
        replay.Replayer(FakeLLM(logprobs="top 3"), VOCAB).reprompted(item(replay, [3], 1, str(tmp_path / "rows")))


def test_flat_log_probabilities(replay: Any) -> None:
    """vLLM's flat container: one list for all positions, the sampled token first and once more in its rank."""

    class Flat(types.SimpleNamespace):
        def __len__(self) -> int:
            return len(self.start_indices)

    flat = Flat(
        start_indices=[0, 4],
        end_indices=[4, 8],
        token_ids=[1, 2, 1, 0, 0, 0, 1, 2],
        logprobs=[1.0, 2.0, 1.0, 0.5, 7.0, 7.0, 8.0, 9.0],
    )
    assert replay.dense_rows(flat, 2, 3).tolist() == [[0.5, 1.0, 2.0], [7.0, 8.0, 9.0]]


def test_recorded_rows_must_be_complete(replay: Any, tmp_path: Path) -> None:
    llm = FakeLLM()
    replayer = replay.Replayer(llm, VOCAB)
    path = str(tmp_path / "rows")
    (result,) = replayer.recorded([item(replay, [9, 9], 2, path)])
    assert result["token_ids"] == [9, 9]
    assert torch.equal(load_file(path)["logits"], expected([1, 2], [9, 9]))
    llm.processor = "ignored"
    with pytest.raises(ValueError, match="0 rows were recorded for 2 tokens"):
        replayer.recorded([item(replay, [9, 9], 2, path)])


@pytest.mark.parametrize(
    ("llm", "traced", "expected_capabilities"),
    [
        (FakeLLM(), False, {"recorded": True, "forced_decode": True, "raw_logits": True, "raw_logprobs": True}),
        (FakeLLM(processor="records"), False, {"recorded": True, "forced_decode": False, "raw_logits": True}),
        (FakeLLM(processor="ignored"), True, {"recorded": False, "forced_decode": False, "traced": True}),
        (FakeLLM(processor="ignored", logprobs="normal"), False, {"raw_logits": False, "logprobs": True}),
        (FakeLLM(processor="ignored", logprobs="refused"), False, {"raw_logits": False, "logprobs": False}),
        (FakeLLM(logprobs="refused"), False, {"raw_logits": True, "logprobs": False, "prompt_logprobs": True}),
    ],
    ids=["all", "records only", "trace replay", "log-probabilities only", "nothing", "no log-probabilities"],
)
def test_capabilities_are_found_by_trying(
    replay: Any, tmp_path: Path, llm: FakeLLM, traced: bool, expected_capabilities: dict[str, bool]
) -> None:
    from assay_inside import probing  # type: ignore[import-not-found]

    probed = probing.probe(replay.Replayer(llm, VOCAB), str(tmp_path), traced)
    found = probed["capabilities"]
    assert {key: found[key] for key in expected_capabilities} == expected_capabilities
    for name in ("recorded", "forced_decode", "logprobs"):
        assert found[name] or name in probed["reasons"] or name == "forced_decode"


def test_settings_that_an_older_vllm_lacks_are_left_out(replay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class OldParams:
        def __init__(self, temperature: float = 1.0, max_tokens: int = 16, logprobs: int | None = None) -> None:
            self.temperature, self.max_tokens, self.logprobs = temperature, max_tokens, logprobs

    import vllm  # type: ignore[import-not-found]

    monkeypatch.setattr(vllm, "SamplingParams", OldParams)
    params = replay.Replayer(FakeLLM(), VOCAB).params(max_tokens=3, logprobs=-1, flat_logprobs=True)
    assert (params.temperature, params.max_tokens, params.logprobs) == (0.0, 3, -1)


class Ranks:
    """Workers that answer `assay_take` as given; a path means that the rank wrote a file."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = answers

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        for answer in self.answers:
            if answer["path"]:
                Path(answer["path"]).write_text(f"rank {answer['rank']}")
        return list(self.answers)


def test_ranks_keep_their_captures_apart(replay: Any, tmp_path: Path) -> None:
    """Two tensor-parallel ranks, of which the first has the rows, and one of another stage; in any order."""
    path = str(tmp_path / "a.safetensors")
    ranks = Ranks(
        {"rank": 1, "rows": 0, "path": f"{path}.rank1", "error": "", "missing": {"tap.x:out0": "r1"}, "snapshots": []},
        {"rank": 2, "rows": 0, "path": f"{path}.rank2", "error": "", "names": ["kv.9.key"],
         "missing": {"kv.0.key": "no such layer here", "kv.9.key": "positions 0-3"}},
        {"rank": 0, "rows": 2, "path": f"{path}.rank0", "error": "", "argmax": [1, 2], "names": ["logits", "kv.0.key"],
         "missing": {"tap.y:out0": "r0"}, "snapshots": ["s.json"], "block_size": 16},
    )  # fmt: skip
    taken = replay.Replayer(ranks, VOCAB).take(item(replay, [1, 2], 2, path), [1, 2])
    assert Path(path).read_text() == "rank 0"
    assert taken["shards"] == [f"{path}.rank1", f"{path}.rank2"]
    assert (taken["rows"], taken["names"], taken["block_size"]) == (2, ["logits", "kv.0.key"], 16)
    assert taken["missing"] == {"tap.x:out0": "r1", "tap.y:out0": "r0", "kv.9.key": "positions 0-3"}
    assert taken["snapshots"] == ["s.json"]


def test_a_rank_that_fails_makes_the_request_fail(replay: Any, tmp_path: Path) -> None:
    fine = {"rank": 0, "rows": 1, "path": None, "error": ""}
    ranks = Ranks(fine, {"rank": 1, "rows": 0, "path": None, "error": "RuntimeError: no room"})
    with pytest.raises(ValueError, match="no room"):
        replay.Replayer(ranks, VOCAB).take(item(replay, [1], 1, str(tmp_path / "a")), [1])
