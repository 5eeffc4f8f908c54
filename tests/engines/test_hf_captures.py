"""Captures of the transformers engine against a forward pass of the same model by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from accuracy_core.capture.taps import kv_tensor_name, tap_tensor_name
from accuracy_core.engines.snapshot import read_snapshot, replay_snapshot, snapshot_requests
from accuracy_core.engines.transformers_engine import TransformersEngine
from accuracy_core.errors import ConfigurationError, InputMismatchError
from accuracy_core.models import embedded_model
from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.schemas import CaptureSpec, EngineSpec, Replacement, ReplayRequest, ReplayResult, SnapshotSpec

PROMPT, FORCED = list(range(20, 40)), [70, 71, 72, 73]
REQUEST = ReplayRequest(request_id="one", prompt_token_ids=PROMPT, forced_token_ids=FORCED)
IDS = torch.tensor([[*PROMPT, *FORCED[:-1]]])
Run = Callable[..., tuple[ReplayResult, dict[str, torch.Tensor]]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersEngine]:
    spec = EngineSpec(engine="transformers", model="embedded", dtype="float32")
    with TransformersEngine(spec, scratch=tmp_path_factory.mktemp("hf")) as engine:
        yield engine


def running(engine: TransformersEngine) -> Run:
    def go(**asked: Any) -> tuple[ReplayResult, dict[str, torch.Tensor]]:
        capture = CaptureSpec(kv=asked.pop("kv", False), modules=asked.pop("modules", []))
        (result,) = engine.replay([REQUEST.model_copy(update={"capture": capture, **asked})])
        return result, load_file(str(result.tensors)) if result.tensors else {}

    return go


@pytest.fixture(scope="module")
def run(engine: TransformersEngine) -> Run:
    return running(engine)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()


def test_taps_and_cache_are_those_of_one_forward_pass(engine: TransformersEngine, run: Run, model: Any) -> None:
    """Over 20 tokens of prefill and 3 decode steps, in FP32, where only rounding is between the two."""
    names = engine.module_names()
    assert names["model.layers.2.mlp.down_proj"] == "Linear"
    modules = [f"{tap}:out0" for tap in names if tap != "lm_head"]
    result, tensors = run(modules=modules, kv=True)
    assert (result.error, result.missing) == (None, {})
    hidden: list[torch.Tensor] = []
    handle = model.model.layers[2].mlp.down_proj.register_forward_hook(lambda m, a, output: hidden.append(output[0]))
    with torch.inference_mode():
        output = model(input_ids=IDS, use_cache=True)
    handle.remove()
    torch.testing.assert_close(tensors[tap_tensor_name("model.layers.2.mlp.down_proj:out0")], hidden[0])
    torch.testing.assert_close(tensors["logits"], output.logits[0, -len(FORCED) :])
    for layer in range(4):
        keys = tensors[kv_tensor_name(layer, "key")]
        torch.testing.assert_close(keys, output.past_key_values.layers[layer].keys[0])
        rows = tensors[tap_tensor_name(f"model.layers.{layer}.self_attn.key:out0")]
        assert torch.equal(keys.transpose(0, 1).flatten(1), rows)
    assert set(tensors) == set(result.names)
    assert torch.equal(run()[1]["logits"], tensors["logits"]), "captures changed the logits"


def test_places_that_are_not_there_are_reported(run: Run) -> None:
    result, tensors = run(modules=["model.layers.9.mlp:out0", "model.norm:in0", "model.norm:out0"])
    assert result.error is None
    assert set(result.missing) == {tap_tensor_name("model.layers.9.mlp:out0"), tap_tensor_name("model.norm:in0")}
    assert tap_tensor_name("model.norm:out0") in tensors


def test_replacements(run: Run, tmp_path: Path) -> None:
    tap = "model.layers.1.mlp.down_proj:out0"
    clean = run(modules=[tap, "model.norm:out0"])[1]
    rows = clean[tap_tensor_name(tap)]
    save_file({"same": rows, "zero": torch.zeros(2, 128), "narrow": torch.zeros(2, 7)}, tmp_path / "rows")

    def put(tensor: str, at: str = tap, **where: Any) -> tuple[ReplayResult, dict[str, torch.Tensor]]:
        item = Replacement(tap=at, file=str(tmp_path / "rows"), tensor=tensor, **where)
        return run(modules=[tap, "model.norm:out0"], replacements=[item])

    assert torch.equal(put("same")[1]["logits"], clean["logits"])
    changed = put("zero", first_row=21)[1]
    norm = tap_tensor_name("model.norm:out0")
    same = (changed[norm] == clean[norm]).all(-1).tolist()
    assert same == [True] * 21 + [False] * 2
    assert torch.equal(changed["logits"][:2], clean["logits"][:2])
    assert "do not fit" in str(put("narrow")[0].error)
    assert "no tap" in str(put("zero", at="model.layers.9:out0")[0].error)
    assert "cannot be read" in str(put("other")[0].error)


@pytest.mark.parametrize(("position", "call", "prefix"), [(5, 0, "none"), (22, 3, "saved")])
def test_a_saved_call_gives_the_same_again(run: Run, tmp_path: Path, position: int, call: int, prefix: str) -> None:
    result, tensors = run(
        modules=["model.layers.3.mlp:out0"], snapshot=SnapshotSpec(folder=str(tmp_path), positions=[position])
    )
    (path,) = result.snapshots
    replay = replay_snapshot(path, "embedded", taps=["model.layers.3.mlp"])
    assert (replay.snapshot.call, replay.prefix) == (call, prefix)
    assert replay.engine_logits is not None
    torch.testing.assert_close(replay.logits[-1:], replay.engine_logits)
    row = replay.snapshot.row
    assert row is not None
    torch.testing.assert_close(replay.engine_logits[0], tensors["logits"][row])
    rows = tensors[tap_tensor_name("model.layers.3.mlp:out0")]
    torch.testing.assert_close(replay.outputs["model.layers.3.mlp"], rows[replay.positions])


def test_a_saved_call_shows_where_the_engine_went_wrong(run: Run, tmp_path: Path) -> None:
    """K of one layer is spoiled in the file, as a fault in the cache would: the replay of that call differs."""
    result, _ = run(snapshot=SnapshotSpec(folder=str(tmp_path), positions=[22]))
    _, tensors = read_snapshot(result.snapshots[0])
    clean = replay_snapshot(result.snapshots[0], "embedded")
    tensors["kv.2.key"][:, 3:9] = tensors["kv.2.key"][:, 4:10].clone()
    save_file(tensors, Path(result.snapshots[0]).with_suffix(".safetensors"))
    wrong = replay_snapshot(result.snapshots[0], "embedded")
    assert not torch.allclose(wrong.logits, clean.logits, atol=1e-3)


def test_the_budget_and_the_chosen_calls_are_kept(run: Run, tmp_path: Path) -> None:
    result, _ = run(snapshot=SnapshotSpec(folder=str(tmp_path), calls=[1, 2, 3], budget=2))
    assert [read_snapshot(path)[0].call for path in result.snapshots] == [1, 2]
    result, _ = run(snapshot=SnapshotSpec(folder=str(tmp_path)))
    assert [read_snapshot(path)[0].first_position for path in result.snapshots] == [0]


def test_snapshots_of_chosen_requests() -> None:
    spec = SnapshotSpec(folder="f")
    other = REQUEST.model_copy(update={"request_id": "two"})
    assert [item.snapshot for item in snapshot_requests([REQUEST, other], spec, prefix="tw")] == [None, spec]
    with pytest.raises(ConfigurationError, match="no request id begins with 'x'"):
        snapshot_requests([REQUEST], spec, prefix="x")


def test_damaged_or_foreign_snapshots_are_refused(run: Run, tmp_path: Path) -> None:
    result, _ = run(snapshot=SnapshotSpec(folder=str(tmp_path), positions=[22]))
    path = Path(result.snapshots[0])
    tensors = load_file(path.with_suffix(".safetensors"))
    save_file({**tensors, "kv.4.key": tensors["kv.3.key"].clone()}, path.with_suffix(".safetensors"))
    with pytest.raises(InputMismatchError, match=r"kv.4.key of the snapshot has \(2, 32\) .* this model's has None"):
        replay_snapshot(path, "embedded")
    path.with_suffix(".safetensors").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        replay_snapshot(path, "embedded")
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match="CallSnapshot"):
        replay_snapshot(path, "embedded")


@pytest.mark.slow
def test_a_sliding_window_forgets_nothing_in_captures(tmp_path: Path) -> None:
    """Prompt and output are longer than the window of 16."""
    checkpoint = architecture_checkpoint("mistral-window")
    spec = EngineSpec(engine="transformers", model=str(checkpoint), dtype="float32")
    with TransformersEngine(spec, scratch=tmp_path) as engine:
        go = running(engine)
        result, tensors = go(kv=True, snapshot=SnapshotSpec(folder=str(tmp_path), positions=[22]))
        plain = go()[1]
    assert result.missing == {}
    assert tensors[kv_tensor_name(3, "key")].shape == (2, 23, 32)
    assert torch.equal(plain["logits"], tensors["logits"])
    replay = replay_snapshot(result.snapshots[0], str(checkpoint))
    assert replay.engine_logits is not None
    torch.testing.assert_close(replay.logits[-1:], replay.engine_logits)
