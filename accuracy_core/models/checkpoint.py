"""What makes a folder a usable Hugging Face checkpoint, and what identifies its contents."""

from __future__ import annotations

import json
from pathlib import Path

from accuracy_core.errors import ConfigurationError
from accuracy_core.models.digests import file_digest
from accuracy_core.models.safetensors_header import damage
from accuracy_core.schemas import fingerprint

SAFETENSORS_INDEX = "model.safetensors.index.json"
_BIN_INDEX = "pytorch_model.bin.index.json"
#: any one of these sets of files makes a tokenizer
_TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("tekken.json",),
)
#: everything beside the weights that can change ids or logits: configuration, tokenizer, chat template, shipped code
_SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "*quant*config.json",
    "params.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "tekken.json",
    "*.tiktoken",
    "*.py",
    "*.safetensors.index.json",
    "*.bin.index.json",
)


def weight_files(folder: Path) -> list[Path]:
    """Weight files that would be loaded, sorted: safetensors if there are any, else `.bin`. Shards come from the index.

    Raises ConfigurationError when there are none or a shard is missing or empty.
    """
    files = _indexed(folder, SAFETENSORS_INDEX) or sorted(folder.glob("*.safetensors"))
    if not files:
        files = _indexed(folder, _BIN_INDEX) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise ConfigurationError(
            f"no weights in {folder}: neither *.safetensors nor pytorch_model*.bin",
            fix="point to the folder that holds the weights, or download them in full",
        )
    missing = [file.name for file in files if not file.is_file() or file.stat().st_size == 0]
    if missing:
        raise ConfigurationError(
            f"weights in {folder} are incomplete, missing or empty: {', '.join(missing)}",
            fix="download or copy the checkpoint again",
        )
    return files


def _indexed(folder: Path, index_name: str) -> list[Path]:
    index = folder / index_name
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{index} is damaged: {error!r}", fix="copy the checkpoint again") from error
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ConfigurationError(f"{index} names files outside its folder: {outside[:3]}")
    return sorted(folder / name for name in names)


def _check_complete(files: list[Path]) -> None:
    for file in files:
        try:
            found = damage(file)
        except OSError as error:
            found = f"it cannot be read: {error}"
        if found:
            raise ConfigurationError(
                f"weights {file} are damaged: {found}", fix="download or copy the checkpoint again"
            )


def check_checkpoint(folder: Path, *, need_tokenizer: bool = True) -> None:
    """Raise ConfigurationError unless `folder` has a readable config.json, complete weights and a tokenizer."""
    config = folder / "config.json"
    if not config.is_file():
        raise ConfigurationError(
            f"{folder} is not a model folder: it has no config.json",
            fix="point to a Hugging Face checkpoint folder (config.json, weights, tokenizer files)",
        )
    try:
        architectures = json.loads(config.read_text(encoding="utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{config} is not a JSON object: {error}", fix="copy the checkpoint again") from error
    if architectures is not None and not architectures:
        raise ConfigurationError(f"{config} names no architecture", fix='set "architectures" in it')
    _check_complete([file for file in weight_files(folder) if file.suffix == ".safetensors"])
    if need_tokenizer and not any(all((folder / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        raise ConfigurationError(
            f"{folder} has no tokenizer: none of "
            + ", ".join("+".join(names) for names in _TOKENIZER_FILES)
            + " is in it",
            fix="copy the tokenizer's files into the folder, or name its folder with --tokenizer",
        )


def folder_fingerprint(folder: Path, memo_dir: Path | None = None) -> str:
    """sha256 (hex) over the full digests of weights, configuration, tokenizer, chat template and code, by file name.

    Neither the folder's path nor any other file in it (README, test data) counts, so copies of a checkpoint agree.
    """
    side_files = {path for pattern in _SIDE_FILES for path in folder.glob(pattern) if path.is_file()}
    files = side_files | set(weight_files(folder))
    try:
        return fingerprint({path.name: file_digest(path, memo_dir) for path in sorted(files)})
    except OSError as error:
        raise ConfigurationError(f"cannot read the checkpoint: {error}", fix="check the files' permissions") from error
