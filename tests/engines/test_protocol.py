"""What every registered engine must do. A new engine is tested by registering it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.capture.taps import kv_tensor_name
from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.engines.registry import ENGINES, check_spec, engine_kind, leases_needed, open_engine
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import CaptureSpec, EngineSpec, FaultSpec, Platform, ReplayRequest

#: engines that run in this process and are there in a moment
QUICK = {"transformers"}
EOS = 1


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ENGINES]
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetEngine]:
    if request.param.startswith("vllm"):
        request.getfixturevalue("engine_python")
    spec = EngineSpec(engine=request.param, model="embedded", max_model_len=64)
    with open_engine(spec, scratch=tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def ask(name: str, **fields: object) -> ReplayRequest:
    return ReplayRequest.model_validate({"request_id": name, "prompt_token_ids": [0, 53, 30], **fields})


def test_it_is_a_target_engine(engine: TargetEngine) -> None:
    assert isinstance(engine, TargetEngine)
    assert engine.name == engine.spec.engine
    assert "torch" in engine.capabilities.versions


def test_forced_tokens_are_followed_past_eos(engine: TargetEngine) -> None:
    if not engine.capabilities.forced_decode:
        pytest.skip("this engine cannot force")
    forced = [40, EOS, EOS, 200, 3]
    (result,) = engine.replay([ask("forced", forced_token_ids=forced)])
    assert result.error is None
    assert result.token_ids == forced
    logits = load_file(str(result.tensors))["logits"]
    assert (logits.dtype, tuple(logits.shape)) == (torch.float32, (5, 260))
    assert result.argmax_ids == logits.argmax(-1).tolist()
    assert torch.isfinite(logits).all()


def test_rows_depend_on_the_forced_prefix_only(engine: TargetEngine) -> None:
    first, second = engine.replay(
        [ask("first", forced_token_ids=[40, 41, 42]), ask("second", forced_token_ids=[40, 41, 99])]
    )
    rows, others = (load_file(str(result.tensors))["logits"] for result in (first, second))
    assert torch.equal(rows, others), "row i is conditioned on the tokens before i"
    (third,) = engine.replay([ask("third", forced_token_ids=[40, 99, 42])])
    changed = load_file(str(third.tensors))["logits"]
    assert torch.equal(rows[:2], changed[:2])
    assert not torch.equal(rows[2], changed[2])


def test_free_generation_is_greedy_and_repeatable(engine: TargetEngine) -> None:
    first, again = engine.replay([ask("one", max_new_tokens=6), ask("two", max_new_tokens=6)])
    assert len(first.token_ids) == 6
    assert first.token_ids == first.argmax_ids == again.token_ids
    (forced,) = engine.replay([ask("three", forced_token_ids=first.token_ids)])
    assert torch.equal(*(load_file(str(result.tensors))["logits"] for result in (first, forced)))


def test_progress_is_reported_per_request(engine: TargetEngine) -> None:
    seen: list[tuple[int, int]] = []
    engine.replay([ask("p1", max_new_tokens=1), ask("p2")], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_what_does_not_fit_is_refused(engine: TargetEngine) -> None:
    with pytest.raises(ConfigurationError, match="longer than the engine's 64"):
        engine.replay([ask("long", prompt_token_ids=[0] * 60, forced_token_ids=[1] * 5)])
    (result,) = engine.replay([ask("fits", prompt_token_ids=[0] * 60, forced_token_ids=[2] * 4)])
    assert len(result.token_ids) == 4
    with pytest.raises(ConfigurationError, match="outside the vocabulary"):
        engine.replay([ask("strange", forced_token_ids=[260])])


def test_captures_of_every_engine_have_the_same_shape(engine: TargetEngine) -> None:
    if engine.name == "vllm-server":
        assert not engine.capabilities.hooks
        (refused,) = engine.replay([ask("kv", capture=CaptureSpec(kv=True))])
        assert "not measured" in refused.error
        return
    assert engine.capabilities.kv_cache
    assert engine.capabilities.hooks
    capturing, plain = engine.replay([ask("kv", capture=CaptureSpec(kv=True)), ask("plain")])
    assert (capturing.error, capturing.missing) == (None, {})
    assert capturing.names == sorted(["logits", *(kv_tensor_name(i, w) for i in range(4) for w in ("key", "value"))])
    assert plain.names == ["logits"]
    assert load_file(str(capturing.tensors))[kv_tensor_name(3, "value")].shape == (2, 3, 32)


def test_unknown_engine() -> None:
    with pytest.raises(ConfigurationError, match="did you mean vllm"):
        engine_kind("vlm")
    with pytest.raises(ConfigurationError, match="unknown engine"):
        open_engine(EngineSpec(engine="onnx", model="embedded"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "vlm"}, "unknown engine"),
        ({"model": "/no/such/model"}, "does not exist"),
        ({"fault": FaultSpec(name="kv-slat")}, "did you mean kv-slot"),
        ({"fault": FaultSpec(name="kv-slot", layer=4)}, "the model has 4 layers"),
        ({"python": "/no/such"}, "no executable file"),
        ({"fault": FaultSpec(name="kv-slot"), "engine_args": {"enforce_eager": False}}, "enforce_eager"),
        ({"engine": "transformers", "engine_args": {"block_size": 32}}, r"engine_args\.block_size"),
        ({"engine": "transformers", "quantization": "fp8"}, "quantization"),
        ({"tensor_parallel_size": 3}, "4 attention heads cannot be split over 3"),
        ({"max_model_len": 257}, "trained for 256 positions"),
    ],
)
def test_wrong_specs_are_found_without_loading(
    fake_spec: object, fake_python: str, change: dict[str, object], words: str
) -> None:
    spec = EngineSpec(model="embedded", python=fake_python)
    check_spec(spec)
    with pytest.raises(ConfigurationError, match=words):
        check_spec(spec.model_copy(update=change))


def test_more_cores_than_there_are(fake_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_NEURON_CORES", "2")
    spec = EngineSpec(model="embedded", python=fake_python, platform=Platform.NEURON, tensor_parallel_size=4)
    assert leases_needed(spec) == 4
    with pytest.raises(ConfigurationError, match="4 neuron cores needed, this host has 2"):
        check_spec(spec)


def test_closed_transformers_engine_says_so(tmp_path: Path) -> None:
    from accuracy_core.errors import EngineDiedError

    engine = open_engine(EngineSpec(engine="transformers", model="embedded"), scratch=tmp_path)
    engine.close()
    with pytest.raises(EngineDiedError, match="closed"):
        engine.replay([ask("late")])
