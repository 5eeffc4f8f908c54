"""What shall be graded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accuracy_core.schemas import Part


class GradeOrder(Part):
    """`submission` is a file on the host that grades, which is the device host where a worker does it."""

    submission: str = Field(description="Python file that defines build(config, weights) -> step(token_ids, cache)")
    task: str = Field("bf16", description="bf16, fp8 or long-context")
    device: Literal["cpu", "cuda"] = "cpu"
    scale: Literal["small", "1b"] = Field("small", description="size of the model: an eighth of the 1B shape, or all")
    seed: int | None = Field(None, ge=0, lt=1 << 31, description="repeat the sequences of an earlier grading")
    baselines: bool = Field(True, description="measure the unfused reference and the bandwidth floor as well")
    output_dir: str | None = None
    device_timeout_s: float = Field(3600, gt=0, description="how long to wait for the device")
