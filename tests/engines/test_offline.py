"""This side of the offline engine, with a fake worker in the place of vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accuracy_core.engines.cores import cores_free, lease_cores
from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.engines.protocol import ConditionalEngine
from accuracy_core.errors import (
    AssayError,
    ConfigurationError,
    EngineArgumentError,
    EngineDiedError,
    EngineStartError,
    NotMeasuredError,
)
from accuracy_core.schemas import CaptureSpec, EngineSpec, Platform, ReplayConditions, ReplayConduct, ReplayRequest
from accuracy_core.schemas.replay import Replacement, SnapshotSpec

pytestmark = pytest.mark.usefixtures("own_locks")

MakeSpec = Callable[..., EngineSpec]
REQUEST = ReplayRequest(request_id="a", prompt_token_ids=[1, 2], forced_token_ids=[3, 4])
OTHER = REQUEST.model_copy(update={"request_id": "b"})


@pytest.fixture(autouse=True)
def _nothing_left(own_locks: Path) -> Iterator[None]:
    """However an engine ended: its cores are free, which no process of it could be holding."""
    yield
    assert cores_free(Platform.CPU)


def test_results_come_in_order_with_progress(fake_spec: MakeSpec) -> None:
    requests = [REQUEST, ReplayRequest(request_id="refused", prompt_token_ids=[1]),
                ReplayRequest(request_id="free", prompt_token_ids=[1], max_new_tokens=3)]  # fmt: skip
    seen: list[tuple[int, int]] = []
    with OfflineVllmEngine(fake_spec()) as engine:
        results = engine.replay(requests, lambda done, total: seen.append((done, total)))
        assert not cores_free(Platform.CPU), "an engine without a lease takes one"
    assert [result.request_id for result in results] == ["a", "refused", "free"]
    assert results[0].token_ids == [3, 4]
    assert results[1].error == "ValueError: refused"
    assert results[2].token_ids == [7, 7, 7]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_close_ends_the_tree_and_its_own_scratch(fake_spec: MakeSpec, tmp_path: Path) -> None:
    engine = OfflineVllmEngine(fake_spec())
    process = engine._process
    assert process is not None
    assert len(process.alive()) == 3
    scratch = engine.scratch
    engine.close()
    assert process.alive() == []
    assert not scratch.exists()
    engine.close()
    with OfflineVllmEngine(fake_spec(), scratch=tmp_path / "given") as engine:
        pass
    assert (tmp_path / "given").is_dir()


def test_a_lease_that_was_given_stays_the_callers(fake_spec: MakeSpec) -> None:
    with lease_cores(fake_spec(), timeout_s=0) as lease:
        with OfflineVllmEngine(fake_spec(), lease=lease):
            assert lease.other_users()
        assert lease.other_users() == []
        assert not cores_free(Platform.CPU)


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("unknown-argument", EngineArgumentError, "no_such_thing"),
        ("die", EngineStartError, "loading the model"),
        ("chatter", EngineDiedError, "no JSON"),
    ],
)
def test_failed_load_is_typed(fake_spec: MakeSpec, mode: str, error: type[AssayError], words: str) -> None:
    with pytest.raises(error) as caught:
        OfflineVllmEngine(fake_spec(mode))
    assert words in str(caught.value)


def test_load_time_out(fake_spec: MakeSpec) -> None:
    with pytest.raises(EngineStartError, match="not loaded after 1 s"):
        OfflineVllmEngine(fake_spec("never"), startup_timeout_s=1, grace_s=1)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("die-mid-run", "segmentation fault in the attention kernel"), ("fail", "core is gone"), ("hang", "within 1 s")],
)
def test_death_in_mid_run(fake_spec: MakeSpec, mode: str, words: str) -> None:
    with (
        OfflineVllmEngine(fake_spec(mode), request_timeout_s=1, grace_s=1) as engine,
        pytest.raises(EngineDiedError) as caught,
    ):
        engine.replay([REQUEST])
    assert words in str(caught.value)


def test_an_engine_that_is_gone_stays_gone(fake_spec: MakeSpec) -> None:
    with OfflineVllmEngine(fake_spec("die-mid-run")) as engine:
        for _ in range(2):
            with pytest.raises(EngineDiedError):
                engine.replay([REQUEST])


def test_too_long_a_prompt_never_reaches_the_engine(fake_spec: MakeSpec) -> None:
    with (
        OfflineVllmEngine(fake_spec("die-mid-run", max_model_len=8)) as engine,
        pytest.raises(ConfigurationError, match="longer than the engine's 8"),
    ):
        engine.replay([ReplayRequest(request_id="a", prompt_token_ids=[1] * 8, forced_token_ids=[1])])


def test_what_cannot_be_captured_is_an_error_of_that_request(fake_spec: MakeSpec) -> None:
    asking = REQUEST.model_copy(update={"capture": CaptureSpec(kv=True)})
    with OfflineVllmEngine(fake_spec()) as engine:
        (result,) = engine.replay([asking])
    assert result.error is not None
    assert "not measured" in result.error
    assert "kv_cache: no cache" in result.error


def test_what_is_asked_for_reaches_the_engine(fake_spec: MakeSpec) -> None:
    replacement = Replacement(tap="model.norm:out0", file="f", tensor="t", first_row=2, columns=(0, 4))
    asking = REQUEST.model_copy(
        update={
            "capture": CaptureSpec(kv=True, modules=["model.norm:out0"]),
            "replacements": [replacement],
            "snapshot": SnapshotSpec(folder="s", calls=[1]),
        }
    )
    with OfflineVllmEngine(fake_spec("captures")) as engine:
        assert engine.module_names() == {"model": "Model", "model.norm": "RMSNorm"}
        capturing, plain = engine.replay_under([asking, OTHER], ReplayConditions(together=True))
    assert json.loads(capturing.missing["asked"]) == {
        "kv": True,
        "modules": ["model.norm:out0"],
        "replacements": [
            {"tap": "model.norm:out0", "file": "f", "tensor": "t", "first_row": 2, "columns": [0, 4]},
        ],
        "snapshot": {"folder": "s", "calls": [1], "positions": [], "budget": 1},
    }
    assert plain.missing == {}, "without captures no hook is asked for"


def test_a_part_that_can_be_captured_is(fake_spec: MakeSpec) -> None:
    """An engine whose cache cannot be read still gives module tensors; a replacement is never left out."""
    asking = REQUEST.model_copy(update={"capture": CaptureSpec(kv=True, modules=["model.norm:out0"])})
    replacing = asking.model_copy(update={"replacements": [Replacement(tap="a:out0", file="f", tensor="t")]})
    with OfflineVllmEngine(fake_spec("only-hooks")) as engine:
        (part,), (refused,) = engine.replay([asking]), engine.replay([replacing])
    assert part.error is None
    assert part.missing["kv"] == "no cache"
    assert json.loads(part.missing["asked"])["modules"] == ["model.norm:out0"]
    assert not json.loads(part.missing["asked"])["kv"]
    assert "replacement: not supported" in str(refused.error)


def test_an_engine_without_hooks_names_no_modules(fake_spec: MakeSpec) -> None:
    with OfflineVllmEngine(fake_spec()) as engine:
        assert engine.module_names() == {}
        asking = OTHER.model_copy(update={"capture": CaptureSpec(modules=["a:out0"])})
        refused = engine.replay_under([REQUEST, asking], ReplayConditions(together=True))
    assert ["forward hooks are not called" in str(result.error) for result in refused] == [True, True]


def test_forcing_that_does_not_work_is_not_measured(fake_spec: MakeSpec) -> None:
    with OfflineVllmEngine(fake_spec("no-force")) as engine:
        assert not engine.capabilities.forced_decode
    with pytest.raises(NotMeasuredError, match="cannot force"):
        OfflineVllmEngine(fake_spec("no-force"), route="forced_decode")
    with OfflineVllmEngine(fake_spec(), route="reprompt") as engine:
        assert not engine.capabilities.forced_decode


def test_conditions_reach_the_engine_and_its_conduct_comes_back(fake_spec: MakeSpec) -> None:
    both = [REQUEST, OTHER]
    with OfflineVllmEngine(fake_spec("cached")) as engine:
        assert isinstance(engine, ConditionalEngine)
        plain = engine.replay(both)
        again = engine.replay_under(both, ReplayConditions())
        together = engine.replay_under(both, ReplayConditions(together=True, prefill_chunk=1))
        hit = engine.replay_under(both, ReplayConditions(read_prefixes=True, forget_prefixes=True))
    assert plain == again
    assert [result.conduct for result in plain] == [ReplayConduct(prefill_chunks=[2])] * 2
    assert [result.conduct for result in together] == [ReplayConduct(prefill_chunks=[1], largest_batch=2)] * 2
    assert [result.conduct for result in hit] == [ReplayConduct(cached_tokens=1, prefill_chunks=[2])] * 2


def test_a_condition_that_the_engine_lacks_is_an_error_that_says_why(fake_spec: MakeSpec) -> None:
    with OfflineVllmEngine(fake_spec()) as engine:
        refused = engine.replay_under([REQUEST, OTHER], ReplayConditions(read_prefixes=True))
        stuck = engine.replay_under([REQUEST], ReplayConditions(forget_prefixes=True))
    assert [result.request_id for result in refused] == ["a", "b"]
    assert {result.error for result in refused} == {"not measured: this engine lacks prefix_caching: not supported"}
    assert stuck[0].error == "blocks are in use"
