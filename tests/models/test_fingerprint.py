"""The fingerprint sees every change that can change a result, and no other."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.models import digests, embedded_model, model_fingerprint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_model(), tmp_path / "model"))


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_copies_agree_whatever_their_path(checkpoint: Path) -> None:
    assert model_fingerprint(checkpoint) == model_fingerprint(embedded_model()) == model_fingerprint("embedded")
    assert len(model_fingerprint(checkpoint)) == 64


def test_files_that_change_nothing_do_not_count(checkpoint: Path) -> None:
    before = model_fingerprint(checkpoint)
    (checkpoint / "README.md").write_text("about")
    (checkpoint / "test.jsonl").unlink()
    assert model_fingerprint(checkpoint) == before


def test_one_bit_of_the_weights_counts(checkpoint: Path) -> None:
    before = model_fingerprint(checkpoint)
    flip_bit(checkpoint / "model.safetensors", -1)
    assert model_fingerprint(checkpoint) != before


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_every_json_beside_the_weights_counts(checkpoint: Path, name: str) -> None:
    before = model_fingerprint(checkpoint)
    content = json.loads((checkpoint / name).read_text())
    (checkpoint / name).write_text(json.dumps({**content, "touched": 1}))
    assert model_fingerprint(checkpoint) != before


def test_chat_template_counts(checkpoint: Path) -> None:
    before = model_fingerprint(checkpoint)
    (checkpoint / "chat_template.jinja").write_text("{{ bos_token }}")
    assert model_fingerprint(checkpoint) != before


@pytest.mark.parametrize(
    "name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json", "ice_text.model"]
)
def test_what_some_engines_and_tokenizers_read_besides_counts(checkpoint: Path, name: str) -> None:
    before = model_fingerprint(checkpoint)
    (checkpoint / name).write_text("{}")
    assert model_fingerprint(checkpoint) != before


def test_in_place_change_with_mtime_set_back_is_seen(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_SETTLING_TIME_S", 0.0)
    weights = checkpoint / "model.safetensors"
    status = weights.stat()
    before = digests.file_digest(weights)
    time.sleep(0.02)  # past one tick of the file system's clock
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights.stat().st_mtime_ns == status.st_mtime_ns
    assert digests.file_digest(weights) != before


def test_digest_is_remembered_across_processes_and_damage_is_ignored(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SETTLING_TIME_S", 0.0)
    weights, memo = checkpoint / "model.safetensors", tmp_path / "memo"
    before = digests.file_digest(weights, memo)
    (record,) = memo.iterdir()
    assert json.loads(record.read_text())["sha256"] == before

    hashed: list[str] = []
    original = digests.hashlib.file_digest
    monkeypatch.setattr(digests.hashlib, "file_digest", lambda *a: hashed.append("x") or original(*a))
    monkeypatch.setattr(digests, "_memo", {})
    assert digests.file_digest(weights, memo) == before
    assert not hashed

    record.write_text("{")
    monkeypatch.setattr(digests, "_memo", {})
    assert digests.file_digest(weights, memo) == before
    assert hashed == ["x"]


def test_a_file_just_written_is_not_remembered(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    flip_bit(weights, -1)
    digests.file_digest(weights)
    assert not any(identity[0] == str(weights) for identity in digests._memo)


def test_incomplete_folder_is_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match="no weights"):
        model_fingerprint(checkpoint)
