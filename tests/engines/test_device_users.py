"""A process that takes no lock is seen by the device's own tool, and nothing is started beside it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from accuracy_core.engines import cores
from accuracy_core.engines.device_users import device_users, neuron_pids
from accuracy_core.errors import DeviceBusyError
from accuracy_core.schemas import Platform

NVIDIA = """#!/bin/sh
case "$1" in
  *query-gpu*) echo "GPU-a, 0"; echo "GPU-b, 1" ;;
  *) echo "GPU-b, 4711"; echo "GPU-b, 4712"; echo "GPU-gone, 1" ;;
esac
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """`tool(name, text)`: an executable of that name on the PATH."""

    def install(name, text):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


def test_processes_on_the_leased_gpus_are_found_and_on_others_are_not(tool):
    tool("nvidia-smi", NVIDIA)
    assert device_users(Platform.CUDA, [0]) == []
    assert device_users(Platform.CUDA, [0, 1]) == [4711, 4712]
    assert device_users(Platform.CPU, [0]) == []


def test_neuron_cores_are_numbered_through_the_devices():
    devices = [
        {"nc_count": 2, "neuron_processes": [{"pid": 7}]},
        {"nc_count": 2, "neuron_processes": []},
        {"nc_count": 2, "neuron_processes": [{"pid": 9}]},
    ]
    assert list(neuron_pids(devices, [2, 3])) == []
    assert list(neuron_pids(devices, [1])) == [7]
    assert list(neuron_pids(devices, [1, 4])) == [7, 9]


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho nonsense\n", "#!/bin/sh\necho '[{}]'\n"])
def test_a_tool_that_cannot_be_understood_shows_nobody(tool, text):
    tool("nvidia-smi", text)
    tool("neuron-ls", text)
    assert device_users(Platform.CUDA, [0]) == []
    assert device_users(Platform.NEURON, [0]) == []


def test_no_lease_beside_a_user_without_a_lock_unless_sharing_is_meant(own_locks, tool, monkeypatch):
    tool("nvidia-smi", NVIDIA)
    monkeypatch.setenv("ASSAY_CUDA_CORES", "2")
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(
        cores, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda s: None, time=lambda: 0.0)
    )
    with pytest.raises(DeviceBusyError, match=r"\[4711, 4712\]"):
        cores.acquire_cores(Platform.CUDA, cores=[1])
    assert cores.cores_free(Platform.CUDA)
    cores.acquire_cores(Platform.CUDA, cores=[0]).release()
    monkeypatch.setenv("ASSAY_DEVICE_TOOL", "off")
    cores.acquire_cores(Platform.CUDA, cores=[1]).release()
