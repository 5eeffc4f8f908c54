"""Where a run does its work: the pool of the device host, and how urgent it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from accuracy_core.schemas.base import Part

DEFAULT_DEVICE_POOL = "device-pool"


class Placement(Part):
    """Without a worker (a run on a laptop) it says nothing: the run does everything in its own process."""

    device_pool: str = Field(
        DEFAULT_DEVICE_POOL, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="work pool of the device host"
    )
    queue: Literal["adhoc", "nightly"] = Field("adhoc", description="queue of the device pool; adhoc goes first")
