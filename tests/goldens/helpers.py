"""A computation that counts itself, and ways to damage an entry."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from accuracy_core.goldens import golden_key
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.metadata import DATA_NAME, METADATA_NAME, GoldenMetadata

CONFIG = {"model": "m", "prompt_token_ids": [1, 2, 3], "output_length": 4}
KEY = golden_key(CONFIG)


class Compute:
    """Gives the same tensors every time, seeded by `seed`, and counts its calls."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.calls = 0

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        rows = torch.randn(4, 1, 50, generator=generator)
        return {
            "fp32_logits": [rows],
            "dtype_logits": [rows.to(torch.bfloat16).to(torch.float32)],
            "ids": [torch.arange(3), torch.arange(5)],
            "flags": [torch.tensor([True, False])],
        }

    def __call__(self) -> dict[str, list[torch.Tensor]]:
        self.calls += 1
        return self.tensors()


@torch.inference_mode()
def plain_greedy(model: Any, prompt: list[int], length: int) -> tuple[list[int], torch.Tensor]:
    tokens, rows = [], []
    for _ in range(length):
        row = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1].float()
        rows.append(row)
        tokens.append(int(row.argmax()))
    return tokens, torch.stack(rows)


def equal(a: object, b: object) -> bool:
    """Same names, and tensors of the same dtype, shape and bits."""
    left, right = dict(a), dict(b)  # type: ignore[call-overload]
    return left.keys() == right.keys() and all(
        len(left[name]) == len(right[name])
        and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(left[name], right[name], strict=True))
        for name in left
    )


def entry_folder(cache: Path, key: str = KEY) -> Path:
    return DiskTier(cache).folder(key)


def rewrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    rewrite(path, bytes(content))


def edit_metadata(folder: Path, **changes: object) -> None:
    content = json.loads((folder / METADATA_NAME).read_text())
    rewrite(folder / METADATA_NAME, json.dumps({**content, **changes}).encode())


def reshape(folder: Path) -> None:
    """Metadata that is consistent in itself and gives a tensor another shape than the data has."""
    metadata = GoldenMetadata.parse((folder / METADATA_NAME).read_bytes(), folder.name)
    metadata.tensors["fp32_logits"][0].shape[:] = [4, 50]
    rewrite(folder / METADATA_NAME, metadata.sealed().to_bytes())


def replace_data(folder: Path, content: bytes) -> None:
    """Other data, and metadata that vouch for it."""
    metadata = GoldenMetadata.parse((folder / METADATA_NAME).read_bytes(), folder.name)
    digest = hashlib.sha256(content).hexdigest()
    rewrite(folder / DATA_NAME, content)
    changed = metadata.model_copy(update={"data_bytes": len(content), "data_sha256": digest})
    rewrite(folder / METADATA_NAME, changed.sealed().to_bytes())


class Malicious:
    """Makes the folder `marker` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


#: name -> what it does to an entry's folder
DAMAGES: dict[str, Callable[[Path], object]] = {
    "data truncated": lambda f: rewrite(f / DATA_NAME, (f / DATA_NAME).read_bytes()[:-1]),
    "data cut to the header": lambda f: rewrite(f / DATA_NAME, (f / DATA_NAME).read_bytes()[:40]),
    "data empty": lambda f: rewrite(f / DATA_NAME, b""),
    "data longer": lambda f: rewrite(f / DATA_NAME, (f / DATA_NAME).read_bytes() + b"\0"),
    "bit in the last tensor": lambda f: flip(f / DATA_NAME, -1),
    "bit in the header": lambda f: flip(f / DATA_NAME, 20),
    "bit in the length": lambda f: flip(f / DATA_NAME, 0),
    "other tensors": lambda f: replace_data(f, save({"fp32_logits/0": torch.zeros(2)})),
    "data is a pickle": lambda f: replace_data(f, pickle.dumps(Malicious(f.parent / "was-run"))),
    "data missing": lambda f: (f / DATA_NAME).unlink(),
    "data is a folder": lambda f: ((f / DATA_NAME).unlink(), (f / DATA_NAME).mkdir()),
    "metadata missing": lambda f: (f / METADATA_NAME).unlink(),
    "metadata empty": lambda f: rewrite(f / METADATA_NAME, b""),
    "metadata truncated": lambda f: rewrite(f / METADATA_NAME, (f / METADATA_NAME).read_bytes()[:100]),
    "bit in the metadata": lambda f: flip(f / METADATA_NAME, 30),
    "bit at the metadata's end": lambda f: flip(f / METADATA_NAME, -10),
    "wrong shape": reshape,
    "metadata is no JSON object": lambda f: rewrite(f / METADATA_NAME, b"[1]"),
    "metadata nested too deep": lambda f: rewrite(f / METADATA_NAME, b"[" * 100_000),
    "metadata not UTF-8": lambda f: rewrite(f / METADATA_NAME, b"\xff\xfe{}"),
    "key_config edited": lambda f: edit_metadata(f, key_config={**CONFIG, "output_length": 5}),
    "compute time edited": lambda f: edit_metadata(f, compute_s=0.0),
    "digest edited": lambda f: edit_metadata(f, data_sha256="0" * 64),
    "unknown field": lambda f: edit_metadata(f, extra=1),
    "newer schema": lambda f: edit_metadata(f, schema_version=99),
    "folder empty": lambda f: [path.unlink() for path in f.iterdir()],
}
