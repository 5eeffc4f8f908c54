"""Named lists of tensors in one safetensors file: written once, read lazily through the descriptor that was hashed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accuracy_core.errors import InputMismatchError, ReferenceError_
from accuracy_core.goldens.metadata import DamagedEntryError, TensorRecord

TensorLists = Mapping[str, Sequence[torch.Tensor]]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def check_tensors(tensors: TensorLists) -> dict[str, list[torch.Tensor]]:
    """The same lists, checked. Raises InputMismatchError for what is no such mapping, ReferenceError_ on NaN or inf."""
    if not isinstance(tensors, Mapping) or not tensors:
        raise InputMismatchError(f"a golden is a mapping of names to lists of tensors, got {type(tensors).__name__}")
    checked: dict[str, list[torch.Tensor]] = {}
    for name, items in tensors.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputMismatchError(f"{name!r} cannot name a tensor: use letters, digits, '_', '-' and '.'")
        if not isinstance(items, list | tuple) or not all(isinstance(item, torch.Tensor) for item in items):
            raise InputMismatchError(f"golden {name!r} must be a list of tensors, got {type(items).__name__}")
        checked[name] = list(items)
        for index, item in enumerate(items):
            if item.is_floating_point() and not bool(torch.isfinite(item).all()):
                count = int((~torch.isfinite(item)).sum())
                raise ReferenceError_(
                    f"golden {name}[{index}] has {count} of {item.numel()} values that are NaN or infinite",
                    fix="check the checkpoint and its config in FP32; nothing was cached",
                )
    return checked


def write_tensors(path: Path, tensors: TensorLists) -> dict[str, list[TensorRecord]]:
    """Write the file and return what is in it.

    A float32 tensor whose every value is a bfloat16 is stored as bfloat16: half the size, no loss. A full disk arrives
    as `SafetensorError`, other trouble as OSError.
    """
    from safetensors.torch import save_file

    flat: dict[str, torch.Tensor] = {}
    records: dict[str, list[TensorRecord]] = {}
    for name, items in tensors.items():
        records[name] = []
        for index, item in enumerate(items):
            stored = flat[f"{name}/{index}"] = _narrowed(item.detach().cpu())
            records[name].append(
                TensorRecord(shape=list(item.shape), dtype=_dtype_name(item), stored_dtype=_dtype_name(stored))
            )
    save_file(flat, str(path))
    return records


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, since tensors that share memory are refused by the format."""
    if tensor.dtype is not torch.float32:
        return tensor.clone(memory_format=torch.contiguous_format)
    narrow = tensor.to(torch.bfloat16)
    if torch.equal(narrow.to(torch.float32), tensor):
        return narrow.contiguous()
    return tensor.clone(memory_format=torch.contiguous_format)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class TensorFile:
    """Reads tensors when they are asked for.

    Owns the open descriptor of exactly the inode whose bytes were verified, so that an eviction or replacement by
    another process can neither pull the data away nor slip other data in.
    """

    def __init__(self, descriptor: int, records: Mapping[str, Sequence[TensorRecord]]) -> None:
        from safetensors import SafetensorError, safe_open

        self._records = records
        try:
            self._file: Any = safe_open(f"/dev/fd/{descriptor}", framework="pt")
            present = set(self._file.keys())
        except (SafetensorError, OSError) as error:
            raise DamagedEntryError(f"no safetensors file: {error}") from error
        expected = {f"{name}/{index}" for name, items in records.items() for index in range(len(items))}
        if present != expected:
            raise DamagedEntryError("data file and metadata name different tensors")
        for name, items in records.items():
            for index, record in enumerate(items):
                if self._file.get_slice(f"{name}/{index}").get_shape() != record.shape:
                    raise DamagedEntryError(f"{name}[{index}] has another shape than its metadata says")
        self._descriptor = descriptor  # last: on an error above the caller still owns it

    def names(self) -> list[str]:
        return list(self._records)

    def load(self, name: str) -> list[torch.Tensor]:
        """Tensors of `name` in the dtypes they were given in. Raises KeyError."""
        return [
            self._file.get_tensor(f"{name}/{index}").to(getattr(torch, record.dtype))
            for index, record in enumerate(self._records[name])
        ]

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)
