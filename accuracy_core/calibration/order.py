"""What the user asks to have calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from accuracy_core.calibration.seed_stability import QUICK_SEEDS, SEEDS
from accuracy_core.schemas.base import Part


class CalibrationOrder(Part):
    """Parameters of one calibration: the form in the Prefect UI and the schema of its API."""

    model: str = Field(
        "embedded",
        min_length=1,
        description="`embedded`, a checkpoint's folder, or a seeded random model: random:llama-3.2-1b@0.125x16 is its "
        "shape at an eighth of the width with 16 layers, random:qwen3 a tiny architecture, random:FOLDER a config.json",
    )
    dtype: Literal["bfloat16", "float16"] = Field("bfloat16", description="dtype of the target")
    quick: bool = Field(False, description=f"{QUICK_SEEDS} seeds instead of {SEEDS}")
    seeds: int | None = Field(None, ge=1, description=f"prompts to measure on, at least {QUICK_SEEDS}")
    tokens: int = Field(24, ge=2, description="tokens of each prompt")
    rows: int = Field(12, ge=1, description="positions compared at the end of each prompt")
    texts: str | None = Field(
        None, description="text file of paragraphs to measure a checkpoint on; empty: solved arithmetic problems"
    )
    output: str | None = Field(None, min_length=1, description="file to write; its report goes beside it, as .html")

    @property
    def seed_count(self) -> int:
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)

    @property
    def label(self) -> str:
        """The model's name for files and lists."""
        return self.model.rstrip("/").rsplit("/", 1)[-1].replace(":", "-")

    @property
    def texts_file(self) -> Path | None:
        return Path(self.texts).expanduser() if self.texts else None
