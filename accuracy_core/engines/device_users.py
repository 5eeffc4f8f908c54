"""Who uses a device according to the device's own tool. Last look before an engine starts; the locks come first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

from accuracy_core.schemas import Platform

#: `off`: do not ask the device's tool, for hosts whose devices are shared on purpose
DEVICE_TOOL = "ASSAY_DEVICE_TOOL"
_TIMEOUT_S = 20.0


def device_users(platform: Platform, cores: Sequence[int]) -> list[int]:
    """Pids that `nvidia-smi` or `neuron-ls` shows on one of `cores`, ascending. Empty when there is no such tool.

    A tool that fails, or prints what is not understood, shows nobody: it is a second look, not the lock.
    """
    if os.environ.get(DEVICE_TOOL) == "off":
        return []
    try:
        if platform is Platform.CUDA:
            return sorted(set(_cuda(cores)))
        if platform is Platform.NEURON:
            return sorted(set(neuron_pids(json.loads(_ask("neuron-ls", "--json-output") or "[]"), cores)))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return []
    return []


def neuron_pids(devices: Any, cores: Sequence[int]) -> Iterable[int]:
    """Pids of `neuron-ls --json-output` on devices that hold one of `cores`; cores are numbered through."""
    first = 0
    for device in devices:
        count = int(device["nc_count"])
        if set(cores) & set(range(first, first + count)):
            yield from (int(process["pid"]) for process in device.get("neuron_processes") or [])
        first += count


def _cuda(cores: Sequence[int]) -> Iterable[int]:
    indices = dict(_rows(_ask("nvidia-smi", "--query-gpu=uuid,index", "--format=csv,noheader")))
    for uuid, pid in _rows(_ask("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")):
        if uuid in indices and int(indices[uuid]) in cores:
            yield int(pid)


def _rows(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        left, separator, right = line.partition(",")
        if separator:
            yield left.strip(), right.strip()


def _ask(tool: str, *arguments: str) -> str:
    path = shutil.which(tool)
    if path is None:
        return ""
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout
