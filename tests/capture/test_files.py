"""Captures on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from accuracy_core.capture.files import CaptureFiles
from accuracy_core.errors import ConfigurationError

_IDS = [4, 5, 6, 7, 8]


def _written(root: Path) -> CaptureFiles:
    files = CaptureFiles(root, "run-a", "hf_fp32", "bfloat16")
    fused = torch.arange(20.0).reshape(5, 4)
    # parts of one fused output share their memory; logits are there from the prompt's last position on
    files.write(3, _IDS, 3, {"a": fused[:, :2], "b": fused[:, 2:], "lm_head": torch.ones(3, 6)}, {"c": "why"})
    return files


def test_the_documented_layout_and_back(tmp_path: Path) -> None:
    _written(tmp_path)
    folder = tmp_path / "hf_fp32"
    assert (folder / "dp0" / "prefill_s3" / "prompt_3.safetensors").is_file()
    assert (folder / "dp0" / "decode_b1" / "prompt_3.safetensors").is_file()
    files = CaptureFiles.open(tmp_path, "run-a", "hf_fp32")
    tensors = files.read(3)
    assert list(tensors) == ["a", "b", "lm_head"]
    assert torch.equal(tensors["b"], torch.arange(20.0).reshape(5, 4)[:, 2:])
    assert tensors["lm_head"].shape == (3, 6)
    prompt = files.prompts[3]
    assert (prompt.token_ids, prompt.prompt_length, prompt.missing) == (_IDS, 3, {"c": "why"})


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    _written(tmp_path)
    with pytest.raises(ConfigurationError, match="another run"):
        CaptureFiles.open(tmp_path, "run-b", "hf_fp32")


def test_a_folder_of_another_schema_is_refused(tmp_path: Path) -> None:
    _written(tmp_path)
    path = tmp_path / "hf_fp32" / "metadata.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema_version": 99}))
    with pytest.raises(ConfigurationError, match=r"metadata\.json"):
        CaptureFiles.open(tmp_path, "run-a", "hf_fp32")


def test_what_is_not_there_or_damaged_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no capture"):
        CaptureFiles.open(tmp_path, "run-a", "neuron")
    files = _written(tmp_path)
    with pytest.raises(ConfigurationError, match="prompt 9"):
        files.read(9)
    (tmp_path / "hf_fp32" / "dp0" / "decode_b1" / "prompt_3.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="damaged"):
        files.read(3)
