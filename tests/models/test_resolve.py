"""Names of models: what is accepted, what is refused and with which advice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.models import embedded_model, resolve_model


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_model(), tmp_path / "my-model"))


def test_embedded_is_the_bundled_folder() -> None:
    folder = resolve_model("embedded")
    assert folder == embedded_model()
    assert (Path(folder) / "model.safetensors").is_file()


def test_bundled_files_hold_no_paths_of_a_machine() -> None:
    for file in embedded_model().iterdir():
        content = file.read_bytes()
        assert b"/tmp/" not in content
        assert b"/home/" not in content
        assert b"/work/" not in content
    config = json.loads((embedded_model() / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert not config.get("_name_or_path")


def test_local_folder_is_checked_and_made_absolute(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(checkpoint) == checkpoint
    monkeypatch.chdir(checkpoint.parent)
    assert resolve_model("my-model") == checkpoint


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (["config.json"], "no config.json"),
        (["model.safetensors"], "no weights"),
        (["tokenizer.json"], "no tokenizer"),
    ],
)
def test_incomplete_folder_is_refused(checkpoint: Path, removed: list[str], message: str) -> None:
    for name in removed:
        (checkpoint / name).unlink()
    with pytest.raises(ConfigurationError, match=message) as caught:
        resolve_model(checkpoint)
    assert caught.value.fix


def test_tokenizer_may_live_elsewhere(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert resolve_model(checkpoint, need_tokenizer=False) == checkpoint


def test_damaged_config_and_empty_weights_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="incomplete"):
        resolve_model(checkpoint)
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="not a JSON object"):
        resolve_model(checkpoint)


@pytest.mark.parametrize("change", [lambda data: data[:700_000], lambda data: data[:100], lambda data: data + b"0"])
def test_weights_of_the_wrong_length_are_refused_before_they_are_loaded(checkpoint: Path, change) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(change(weights.read_bytes()))
    with pytest.raises(ConfigurationError, match=r"model\.safetensors are damaged") as caught:
        resolve_model(checkpoint)
    assert "again" in caught.value.fix


def test_missing_shard_is_named(checkpoint: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigurationError, match=r"model-00002\.safetensors"):
        resolve_model(checkpoint)
    index["weight_map"]["b"] = "../elsewhere.safetensors"
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigurationError, match="outside its folder"):
        resolve_model(checkpoint)


def test_near_names_are_offered(checkpoint: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_model(str(checkpoint.with_name("my-modl")))
    assert "does not exist" in caught.value.message
    assert "my-model" in caught.value.fix
    with pytest.raises(ConfigurationError) as caught:
        resolve_model("embeded")
    assert "'embedded'" in caught.value.fix


@pytest.mark.parametrize("name", ["", "  ", "/no/such/folder", "./nothing-here", "model.gguf"])
def test_what_is_no_model_at_all(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_model(name)
    assert caught.value.fix


def test_file_instead_of_folder(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(ConfigurationError, match="is a file"):
        resolve_model(file)


def test_hub_id_without_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hub cannot be reached") as caught:
        resolve_model("some-org/some-model-7b")
    assert "downloaded checkpoint" in caught.value.fix


def test_hub_id_that_was_downloaded_before(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / ("a" * 40)
    shutil.copytree(embedded_model(), snapshot)
    (tmp_path / "hub" / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "hub" / "models--org--tiny" / "refs" / "main").write_text("a" * 40)
    assert resolve_model("org/tiny") == snapshot
