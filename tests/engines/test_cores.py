from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accuracy_core.engines import processes
from accuracy_core.engines.cores import acquire_cores, cores_free, holders, lease_cores
from accuracy_core.errors import ConfigurationError, DeviceBusyError
from accuracy_core.schemas import EngineSpec, Platform

pytestmark = pytest.mark.usefixtures("own_locks")

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_NEURON_CORES", "0-7")


def test_a_core_is_held_once_and_free_after_release() -> None:
    assert cores_free(Platform.CPU)
    with acquire_cores(Platform.CPU, note="first") as lease:
        assert lease.cores == (0,)
        assert not cores_free(Platform.CPU)
        with pytest.raises(DeviceBusyError, match=rf"process {os.getpid()}, first"):
            acquire_cores(Platform.CPU, timeout_s=0)
        assert [holder.note for holder in holders(Platform.CPU)] == ["first"]
    assert cores_free(Platform.CPU)
    assert holders(Platform.CPU) == []


def test_the_lowest_free_cores_are_taken(eight: None) -> None:
    with acquire_cores(Platform.NEURON, 2) as first, acquire_cores(Platform.NEURON, 4) as second:
        assert first.cores == (0, 1)
        assert second.cores == (2, 3, 4, 5)
        assert first.environment()["NEURON_RT_VISIBLE_CORES"] == "0-1"
        assert second.environment()["NEURON_RT_VISIBLE_CORES"] == "2-5"
        with pytest.raises(DeviceBusyError, match="4 needed"):
            acquire_cores(Platform.NEURON, 4, timeout_s=0)
        assert cores_free(Platform.NEURON, [6, 7]), "a request that was not met must keep nothing"
        first.release()
        with acquire_cores(Platform.NEURON, 4, timeout_s=0) as third:
            assert third.cores == (0, 1, 6, 7)
            assert third.environment()["NEURON_RT_VISIBLE_CORES"] == "0,1,6,7"


def test_exactly_these_cores(eight: None) -> None:
    with acquire_cores(Platform.NEURON, cores=[5, 3]) as lease:
        assert lease.cores == (3, 5)
        with pytest.raises(DeviceBusyError):
            acquire_cores(Platform.NEURON, cores=[3], timeout_s=0)


@pytest.mark.parametrize(("count", "cores"), [(9, None), (-1, None), (1, [8]), (1, [])])
def test_impossible_requests_are_configuration_errors(eight: None, count: int, cores: list[int] | None) -> None:
    with pytest.raises(ConfigurationError, match="this host has"):
        acquire_cores(Platform.NEURON, count, cores=cores, timeout_s=0)


def test_more_parallel_than_there_are_cores(eight: None) -> None:
    with pytest.raises(ConfigurationError, match="16 neuron cores needed, this host has 8"):
        lease_cores(EngineSpec(model="m", platform=Platform.NEURON, tensor_parallel_size=16))


def test_cores_stay_locked_while_an_engine_has_the_descriptors() -> None:
    lease = acquire_cores(Platform.CPU)
    with subprocess.Popen(SLEEP, pass_fds=lease.fds, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        assert lease.other_users() == [engine.pid]
        lease.release()
        assert not cores_free(Platform.CPU)
        engine.kill()
        engine.wait()
        assert cores_free(Platform.CPU)


def test_somebody_who_only_waits_is_no_user() -> None:
    with acquire_cores(Platform.CPU) as lease:
        path = lease.lock_dir / "cpu-0.lock"
        code = f"f = open({str(path)!r}); import time; print('up', flush=True); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as waiter:
            assert waiter.stdout is not None
            waiter.stdout.readline()
            assert lease.other_users() == []
            waiter.kill()


def test_leftovers_on_the_leased_cores_are_ended_and_others_left_alone(eight: None) -> None:
    with acquire_cores(Platform.NEURON, cores=[1]) as first, acquire_cores(Platform.NEURON, cores=[2]) as second:
        environments = [{**os.environ, **lease.environment()} for lease in (first, second)]
    with (
        subprocess.Popen(SLEEP, env=environments[0], stdout=subprocess.PIPE) as left_behind,
        subprocess.Popen(SLEEP, env=environments[1], stdout=subprocess.PIPE) as on_other_core,
    ):
        for engine in (left_behind, on_other_core):
            assert engine.stdout is not None
            engine.stdout.readline()
        try:
            with acquire_cores(Platform.NEURON, cores=[0, 1]):
                assert not processes.is_alive(left_behind.pid)
                assert processes.is_alive(on_other_core.pid)
        finally:
            left_behind.kill()
            on_other_core.kill()


def test_a_removed_lock_file_does_not_let_two_in(own_locks: Path) -> None:
    """Whoever locked the removed file excludes nobody; a new lease must be of the file that others will open."""
    with acquire_cores(Platform.CPU) as lease:
        (own_locks / "cpu-0.lock").unlink()
        with acquire_cores(Platform.CPU, timeout_s=0) as second:
            assert second.fds != lease.fds
            with pytest.raises(DeviceBusyError):
                acquire_cores(Platform.CPU, timeout_s=0)


def test_engine_without_device_leases_nothing() -> None:
    with lease_cores(EngineSpec(engine="transformers", model="m"), timeout_s=0) as lease:
        assert lease.cores == ()
        assert cores_free(Platform.CPU)


def test_lock_directory_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASSAY_LOCK_DIR", str(tmp_path / "file" / "locks"))
    with pytest.raises(ConfigurationError, match="ASSAY_LOCK_DIR"):
        acquire_cores(Platform.CPU, timeout_s=0)
