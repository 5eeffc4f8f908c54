"""The deployments that `prefect.yaml` declares, as data."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from accuracy_core.errors import ConfigurationError
from flows.placement import DEFAULT_DEVICE_POOL

PREFECT_YAML = Path(__file__).with_name("prefect.yaml")
#: time zone of the schedules
TIMEZONE = "ASSAY_TIMEZONE"
_TEMPLATE = re.compile(r"\{\{\s*\$(\w+)\s*\}\}")


@dataclass(frozen=True)
class Declared:
    """One deployment. `flow` is loaded on demand."""

    name: str
    entrypoint: str
    pool: str
    queue: str
    description: str = ""
    tags: Sequence[str] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    schedules: Sequence[dict[str, Any]] = ()
    concurrency: dict[str, Any] = field(default_factory=dict)
    job_variables: dict[str, Any] = field(default_factory=dict)

    def flow(self) -> Any:
        module, _, name = self.entrypoint.rpartition(".")
        return getattr(import_module(module), name)


def declared(device_pools: Sequence[str] = (DEFAULT_DEVICE_POOL,), *, path: Path = PREFECT_YAML) -> list[Declared]:
    """Every deployment; those of the device pool once per pool of `device_pools`, named like it.

    Raises ConfigurationError for a time zone that does not exist.
    """
    text = _TEMPLATE.sub(_variable, path.read_text(encoding="utf-8"))
    found: list[Declared] = []
    for entry in yaml.safe_load(text)["deployments"]:
        one = _one(entry)
        if one.pool != DEFAULT_DEVICE_POOL:
            found.append(one)
            continue
        found += [Declared(**{**vars(one), "name": pool, "pool": pool}) for pool in device_pools]
    return found


def _one(entry: dict[str, Any]) -> Declared:
    return Declared(
        name=entry["name"],
        entrypoint=entry["entrypoint"],
        pool=entry["work_pool"]["name"],
        queue=entry["work_pool"]["work_queue_name"],
        description=entry.get("description", ""),
        tags=tuple(entry.get("tags", ())),
        parameters=entry.get("parameters", {}),
        schedules=tuple(entry.get("schedules", ())),
        concurrency=entry.get("concurrency_limit", {}),
        job_variables=entry["work_pool"].get("job_variables", {}),
    )


def _variable(match: re.Match[str]) -> str:
    value = os.environ.get(match[1], "")
    if match[1] == TIMEZONE:
        value = value or "UTC"
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise ConfigurationError(
                f"${TIMEZONE} is {value!r}, which is no time zone", fix="give one such as Europe/Zurich or UTC"
            ) from error
    return value
