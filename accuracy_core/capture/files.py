"""Captures on disk: `<side>/dp0/prefill_s<length>/`, `<side>/dp0/decode_b1/`, one safetensors file per prompt in each.

Every side's folder has a `metadata.json`; a folder of another run or another schema is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import Field, ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Part, Schema

METADATA = "metadata.json"
#: one sequence at a time: the documented name of decode captures has the batch size
_DECODE = "decode_b1"


class CapturedPrompt(Part):
    """One prompt of a capture. `rows`: positions per tap where they are not all of them (`lm_head`)."""

    index: int
    prompt_length: int
    positions: int
    token_ids: list[int] = Field(description="prompt and forced tokens without the last: one per position")
    missing: dict[str, str] = Field(default_factory=dict)
    order: list[str] = Field(default_factory=list, description="taps in the order of execution")


class CaptureMetadata(Schema):
    """`<side>/metadata.json`."""

    run: str = Field(description="fingerprint of the target and the prompts: captures of two runs are not mixed")
    side: str
    dtype: str
    tensor_parallel_size: int = 1
    prompts: list[CapturedPrompt] = Field(default_factory=list)


class CaptureFiles:
    """Captures of one side below `root`. Reading a folder checks that it belongs to `run`."""

    def __init__(self, root: Path, run: str, side: str, dtype: str, tensor_parallel_size: int = 1) -> None:
        self.folder = root / side
        self._metadata = CaptureMetadata(run=run, side=side, dtype=dtype, tensor_parallel_size=tensor_parallel_size)

    @classmethod
    def open(cls, root: Path, run: str, side: str) -> CaptureFiles:
        """A capture that was written before. Raises ConfigurationError for another run, another schema, or none."""
        path = root / side / METADATA
        try:
            metadata = CaptureMetadata.from_json(path.read_text(encoding="utf-8"), source=str(path))
        except OSError as error:
            raise ConfigurationError(
                f"{root / side} holds no capture: {error}", fix="capture that side first"
            ) from error
        except ValidationError as error:
            raise ConfigurationError(f"{path} is no capture of this version: {error}") from error
        if metadata.run != run:
            raise ConfigurationError(
                f"{root / side} holds the capture of another run ({metadata.run[:12]}, not {run[:12]})",
                fix="choose another output directory, or remove that folder",
            )
        files = cls(root, run, side, metadata.dtype, metadata.tensor_parallel_size)
        files._metadata = metadata
        return files

    @classmethod
    def again(cls, root: Path, run: str, side: str, dtype: str) -> CaptureFiles:
        """The capture of this run if it was begun, else a new one (that of another run is written over)."""
        try:
            return cls.open(root, run, side)
        except ConfigurationError:
            return cls(root, run, side, dtype)

    @property
    def prompts(self) -> dict[int, CapturedPrompt]:
        return {prompt.index: prompt for prompt in self._metadata.prompts}

    def write(
        self,
        index: int,
        token_ids: Sequence[int],
        prompt_length: int,
        tensors: Mapping[str, torch.Tensor],
        missing: Mapping[str, str] | None = None,
    ) -> None:
        """Keep one prompt's tensors, tap -> (positions, features); a tap with fewer rows holds the last positions."""
        from safetensors.torch import save_file

        positions = len(token_ids)
        prompt = CapturedPrompt(
            index=index, prompt_length=prompt_length, positions=positions, token_ids=list(token_ids),
            missing=dict(missing or {}), order=list(tensors),
        )  # fmt: skip
        parts: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
        for tap, rows in tensors.items():
            cut = max(prompt_length - (positions - rows.shape[0]), 0)
            # a copy: tensors that share memory (parts of one fused output) are refused by the format
            parts[0][tap] = rows[:cut].clone(memory_format=torch.contiguous_format)
            parts[1][tap] = rows[cut:].clone(memory_format=torch.contiguous_format)
        for part, path in zip(parts, self._paths(prompt), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(part, str(path))
        others = [item for item in self._metadata.prompts if item.index != index]
        self._metadata = self._metadata.model_copy(update={"prompts": [*others, prompt]})
        (self.folder / METADATA).write_text(self._metadata.to_json(), encoding="utf-8")

    def read(self, index: int) -> dict[str, torch.Tensor]:
        """Tap -> (positions, features), in the order of execution. Raises ConfigurationError for what is not there."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        prompt = self.prompts.get(index)
        if prompt is None:
            raise ConfigurationError(f"{self.folder} holds no capture of prompt {index}")
        try:
            prefill, decode = (load_file(str(path)) for path in self._paths(prompt))
            return {tap: torch.cat([prefill[tap], decode[tap]]) for tap in prompt.order}
        except (OSError, SafetensorError, KeyError) as error:
            raise ConfigurationError(f"capture of prompt {index} in {self.folder} is damaged: {error}") from error

    def _paths(self, prompt: CapturedPrompt) -> tuple[Path, Path]:
        name = f"prompt_{prompt.index}.safetensors"
        folder = self.folder / "dp0"
        return folder / f"prefill_s{prompt.prompt_length}" / name, folder / _DECODE / name
