"""Device cores of this host, as configuration: how many there are, what they are called, how an engine is told."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, Platform

#: a TOML file with a table per platform: `[neuron]` / `cores = "0-31"` (a count, a range list, or a list of numbers)
DEVICES_FILE = "ASSAY_DEVICES_FILE"
#: environment variable that overrides a platform's cores, same notation
CORES_VARIABLE = {platform: f"ASSAY_{platform.upper()}_CORES" for platform in Platform}
#: what the platform's runtime reads to learn which cores it may use
VISIBLE_VARIABLE = {Platform.CUDA: "CUDA_VISIBLE_DEVICES", Platform.NEURON: "NEURON_RT_VISIBLE_CORES"}
#: NeuronCores per /dev/neuron* when nothing is configured: the smallest number that any generation has
_CORES_PER_NEURON_DEVICE = 2


def platform_cores(platform: Platform) -> tuple[int, ...]:
    """Cores of `platform` on this host, ascending.

    From $ASSAY_<PLATFORM>_CORES, else $ASSAY_DEVICES_FILE, else (cuda) an inherited CUDA_VISIBLE_DEVICES of plain
    numbers, else the device files. The CPU has one slot: two engines on the same cores would only disturb each other.
    Raises ConfigurationError for a notation that cannot be read.
    """
    platform = Platform(platform)
    variable = CORES_VARIABLE[platform]
    if os.environ.get(variable):
        return parse_cores(os.environ[variable], source=f"${variable}")
    configured = _from_file(platform)
    if configured is not None:
        return configured
    if platform is Platform.CPU:
        return (0,)
    inherited = os.environ.get(VISIBLE_VARIABLE[platform], "")
    if inherited and re.fullmatch(r"[0-9,\s-]+", inherited):
        return parse_cores(_listed(inherited), source=f"${VISIBLE_VARIABLE[platform]}")
    if platform is Platform.CUDA:
        return tuple(range(len(_device_files("nvidia"))))
    return tuple(range(len(_device_files("neuron")) * _CORES_PER_NEURON_DEVICE))


def parse_cores(value: str | int | Sequence[int], *, source: str) -> tuple[int, ...]:
    """`8` or `"8"`: cores 0 to 7; `"0-3,6"` or `[0, 1, 6]`: exactly those. Ascending, without repeats."""
    problem = ConfigurationError(
        f"{source} is {value!r}, which names no device cores",
        fix='give a number of cores, a list such as "0-3,6", or [0, 1]',
    )
    if isinstance(value, str):
        text = value.strip()
        if text.isdigit():
            value = int(text)
        else:
            cores: list[int] = []
            for part in filter(None, (item.strip() for item in text.split(","))):
                match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
                if match is None:
                    raise problem
                first, last = int(match[1]), int(match[2] or match[1])
                cores += range(first, last + 1)
            value = cores
    if isinstance(value, bool):
        raise problem
    if isinstance(value, int):
        value = range(value)
    if not all(isinstance(core, int) and not isinstance(core, bool) and core >= 0 for core in value) or not len(value):
        raise problem
    return tuple(sorted(set(value)))


def cores_needed(spec: EngineSpec) -> int:
    """Cores that an engine of `spec` occupies. On CPU always the one slot; HF on the CPU is on no device: none."""
    if spec.platform is Platform.CPU:
        return 0 if spec.engine == "transformers" else 1
    count = spec.tensor_parallel_size
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        factor = spec.engine_args.get(name, 1)
        if isinstance(factor, int) and factor > 0:
            count *= factor
    return count


def visible_cores(platform: Platform, cores: Sequence[int]) -> dict[str, str]:
    """Environment that limits an engine to `cores`. Neuron takes ranges, CUDA a list in PCI order."""
    if platform is Platform.CUDA:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, cores)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if platform is Platform.NEURON:
        contiguous = list(cores) == list(range(cores[0], cores[-1] + 1))
        text = f"{cores[0]}-{cores[-1]}" if contiguous and len(cores) > 1 else ",".join(map(str, cores))
        return {"NEURON_RT_VISIBLE_CORES": text}
    return {}


def _from_file(platform: Platform) -> tuple[int, ...] | None:
    name = os.environ.get(DEVICES_FILE)
    if not name:
        return None
    try:
        data: dict[str, Any] = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"${DEVICES_FILE}: {name} cannot be read: {error}") from error
    table = data.get(platform.value)
    if table is None:
        return None
    if not isinstance(table, dict) or "cores" not in table:
        raise ConfigurationError(
            f"{name}: [{platform.value}] has no `cores`", fix='write `cores = "0-7"` or `cores = 8`'
        )
    return parse_cores(table["cores"], source=f"{name}: [{platform.value}] cores")


def _device_files(prefix: str) -> list[str]:
    return sorted(name for name in os.listdir("/dev") if re.fullmatch(prefix + r"\d+", name))


def _listed(text: str) -> str:
    """A single number in CUDA_VISIBLE_DEVICES names a device, it is no count."""
    return f"{text.strip()}," if text.strip().isdigit() else text
