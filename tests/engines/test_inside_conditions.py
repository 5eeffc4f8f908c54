"""Conditions of serving inside the engine: what the scheduler is told, how the conduct is read, what a probe finds."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from . import inside_stubs


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    inside_stubs.install(monkeypatch)


class Scheduler:
    """vLLM 0.32's rule for the tokens of one call: a threshold per request that a single request is exempt from."""

    def __init__(self, waiting: dict[str, int], *, chunked: bool = True) -> None:
        self.requests = dict(waiting)
        self.scheduler_config = types.SimpleNamespace(long_prefill_token_threshold=0, enable_chunked_prefill=chunked)
        self.adaptive_long_prefill_threshold = True
        self.max_num_scheduled_tokens = 100

    def schedule(self) -> dict[str, int]:
        limit = self.scheduler_config.long_prefill_token_threshold if len(self.requests) > 1 else 0
        if limit and self.adaptive_long_prefill_threshold:
            limit = max(limit, self.max_num_scheduled_tokens // len(self.requests))
        counts, left = {}, self.max_num_scheduled_tokens
        for name, missing in list(self.requests.items()):
            counts[name] = min(missing, left, limit or missing)
            left -= counts[name]
            self.requests[name] -= counts[name]
            if not self.requests[name]:
                del self.requests[name]
        return counts


def engine_of(scheduler: Any, **cache: Any) -> Any:
    engine = types.SimpleNamespace(
        engine_core=types.SimpleNamespace(engine_core=types.SimpleNamespace(scheduler=scheduler)),
        vllm_config=types.SimpleNamespace(cache_config=types.SimpleNamespace(**cache)),
    )
    return types.SimpleNamespace(llm_engine=engine)


def test_prompts_come_in_pieces_together_and_alone() -> None:
    from assay_inside import conditions  # type: ignore[import-not-found]

    scheduler = Scheduler({"a": 10, "b": 3})
    with conditions.prefilled_in_pieces(engine_of(scheduler), 4):
        calls = [scheduler.schedule() for _ in range(3)]
    assert calls == [{"a": 4, "b": 3}, {"a": 4}, {"a": 2}]
    scheduler.requests = {"a": 10}
    assert scheduler.schedule() == {"a": 10}, "everything is as it was"
    assert scheduler.max_num_scheduled_tokens == 100
    assert scheduler.adaptive_long_prefill_threshold
    assert "schedule" not in vars(scheduler)


def test_without_a_piece_the_scheduler_is_not_looked_at() -> None:
    from assay_inside import conditions

    with conditions.prefilled_in_pieces(None, None):
        pass


@pytest.mark.parametrize(
    ("llm", "words"),
    [
        (engine_of(Scheduler({}, chunked=False)), "enable_chunked_prefill"),
        (types.SimpleNamespace(llm_engine=types.SimpleNamespace()), "another process"),
    ],
)
def test_a_scheduler_that_cannot_cut_prompts_says_so(llm: Any, words: str) -> None:
    from assay_inside import conditions

    with pytest.raises(ValueError, match=words), conditions.prefilled_in_pieces(llm, 4):
        pytest.fail("requests would wait for ever")


@pytest.mark.parametrize(
    ("llm", "words"),
    [
        (engine_of(None, enable_prefix_caching=True), "no way to empty"),
        (types.SimpleNamespace(**vars(engine_of(None, enable_prefix_caching=True)), reset_prefix_cache=lambda: False),
         "blocks of it are in use"),
    ],
)  # fmt: skip
def test_a_prefix_cache_that_stays_is_an_error(llm: Any, words: str) -> None:
    from assay_inside import conditions

    with pytest.raises(ValueError, match=words):
        conditions.forget_prefixes(llm)
    conditions.forget_prefixes(engine_of(None, enable_prefix_caching=False))


# conduct


class Calls:
    """A runner whose calls are scheduler outputs, written down by hand: `call(runs, new=, finished=)`.

    `runs`: request -> (first position, tokens); `new`: request -> length of its prompt.
    """

    def __init__(self) -> None:
        from assay_inside import conduct

        self.executed = 0
        self.observer = conduct.Observer(self)

    def execute_model(self, output: Any) -> None:
        self.executed += 1

    def call(self, runs: dict[str, tuple[int, int]], new: dict[str, int] | None = None, finished: Any = ()) -> None:
        new = new or {}
        begun = [
            types.SimpleNamespace(
                req_id=f"engine-{name}", prompt_token_ids=[0] * length, num_computed_tokens=runs[name][0],
                sampling_params=types.SimpleNamespace(extra_args=None if name == "other" else {"assay_id": name}),
            )
            for name, length in new.items()
        ]  # fmt: skip
        old = [name for name in runs if name not in new]
        cached = types.SimpleNamespace(
            req_ids=[f"engine-{name}" for name in old], num_computed_tokens=[runs[name][0] for name in old]
        )
        output = types.SimpleNamespace(
            scheduled_new_reqs=begun, scheduled_cached_reqs=cached, finished_req_ids={f"engine-{n}" for n in finished},
            num_scheduled_tokens={f"engine-{name}": count for name, (_, count) in runs.items()},
        )  # fmt: skip
        self.execute_model(output)


def test_conduct_tells_hits_pieces_and_company() -> None:
    """`a`, of 10 tokens, comes in two pieces; `b`, of 9, finds 8 in the cache; `other` is nobody's but takes part."""
    calls = Calls()
    calls.call({"a": (0, 6)}, new={"a": 10})
    calls.call({"a": (6, 4), "b": (8, 1), "other": (0, 5)}, new={"b": 9, "other": 5})
    calls.call({"a": (10, 1), "b": (9, 1)}, finished=["other"])
    calls.call({"b": (10, 1)}, finished=["a"])
    assert calls.executed == 4
    assert calls.observer.take("a") == {"cached_tokens": 0, "prefill_chunks": [6, 4], "largest_batch": 3}
    assert calls.observer.take("b") == {"cached_tokens": 8, "prefill_chunks": [1], "largest_batch": 3}
    assert calls.observer.take("a") is None
    assert calls.observer.take("other") is None


def test_a_preempted_prompt_is_computed_again() -> None:
    calls = Calls()
    calls.call({"a": (0, 6)}, new={"a": 6})
    calls.call({"a": (6, 1)})
    calls.call({"a": (0, 8)})
    assert calls.observer.take("a")["prefill_chunks"] == [6, 6]


def test_calls_that_are_not_understood_go_on_without_being_followed() -> None:
    calls = Calls()
    calls.call({"a": (0, 2)}, new={"a": 2})
    calls.execute_model(types.SimpleNamespace())
    calls.call({"a": (2, 1)})
    assert calls.executed == 3
    assert calls.observer.take("a") is None
    assert "finished_req_ids" in calls.observer.failure


# probing


class Engine:
    """`worker.Engine` that runs requests as `able` says: "batching", "forces", "chunks", "caches", "skips", "empties",
    "tells"; blocks of 4 tokens."""

    def __init__(self, able: set[str]) -> None:
        self.able, self.cache = able, 0
        self.llm = engine_of(None, enable_prefix_caching="caches" in able, block_size=4)
        self.llm.reset_prefix_cache = self._reset

    def _reset(self) -> bool:
        self.cache = 0 if "empties" in self.able else self.cache
        return True

    def replay(self, requests: list[dict[str, Any]], under: dict[str, Any]) -> list[dict[str, Any]]:
        return [self._one(request, len(requests), under) for request in requests]

    def _one(self, request: dict[str, Any], at_once: int, under: dict[str, Any]) -> dict[str, Any]:
        Path(request["path"]).touch()
        length = len(request["prompt"])
        reads = under.get("read_prefixes") or "skips" not in self.able
        hit = min(self.cache, length - 1) if reads and "caches" in self.able else 0
        self.cache = length // 4 * 4
        piece = (under.get("prefill_chunk") if "chunks" in self.able else None) or length
        pieces = [min(piece, length - start) for start in range(hit, length, piece)]
        batch = at_once if "batching" in self.able else 1
        conduct = {"cached_tokens": hit, "prefill_chunks": pieces, "largest_batch": batch}
        tokens = request["forced"] if "forces" in self.able else [7] * request["count"]
        return {"token_ids": tokens, "conduct": conduct if "tells" in self.able else None}


ALL = {"batching", "forces", "chunks", "caches", "skips", "empties", "tells"}


@pytest.mark.parametrize(
    ("lacking", "capability", "words"),
    [
        ("batching", "batching", "one after the other"),
        ("forces", "batching", "not forced"),
        ("chunks", "chunked_prefill", r"in pieces of \[4\]"),
        ("caches", "prefix_caching", "enable_prefix_caching"),
        ("skips", "prefix_caching", "cannot be kept from reading"),
        ("empties", "prefix_caching", "cannot be emptied"),
    ],
)
def test_a_condition_is_a_capability_when_it_was_seen_to_take_place(
    tmp_path: Path, lacking: str, capability: str, words: str
) -> None:
    import re

    from assay_inside import probing_conditions

    probed = probing_conditions.probe(Engine(ALL - {lacking}), str(tmp_path))
    assert [name for name, found in probed["capabilities"].items() if not found] == [capability]
    assert re.search(words, probed["reasons"][capability])
    assert list(tmp_path.iterdir()) == [], "the probe leaves no files"


def test_an_engine_that_can_do_all_and_one_that_does_not_tell(tmp_path: Path) -> None:
    from assay_inside import probing_conditions

    able = probing_conditions.probe(Engine(ALL), str(tmp_path))
    assert able == {"capabilities": dict.fromkeys(able["capabilities"], True), "reasons": {}}
    silent = probing_conditions.probe(Engine(ALL - {"tells"}), str(tmp_path))
    assert not any(silent["capabilities"].values())
    assert all("cannot be followed" in reason for reason in silent["reasons"].values())
