"""The life-line: with fake engines that have a grandchild in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accuracy_core.engines import processes
from accuracy_core.engines.channel import Channel, ChannelClosed
from accuracy_core.engines.cores import cores_free
from accuracy_core.engines.supervised import SupervisedProcess, start_supervised, supervised_process
from accuracy_core.errors import EngineStartError
from accuracy_core.schemas import Platform

from .conftest import Creator, wait_until

ENGINE = """
import signal, subprocess, sys, time
{prepare}
g = subprocess.Popen([sys.executable, '-c', '''import signal, time
{prepare}
print("up", flush=True)
time.sleep(600)'''], start_new_session=True)
time.sleep(600)
"""
POLITE = ENGINE.format(prepare="")
STUBBORN = ENGINE.format(prepare="signal.signal(signal.SIGTERM, signal.SIG_IGN)")


def start(code: str, grace_s: float = 1.0) -> SupervisedProcess:
    process = start_supervised(
        [sys.executable, "-c", code], env=dict(os.environ), log=subprocess.DEVNULL, grace_s=grace_s, pipes=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("code", [POLITE, STUBBORN], ids=["polite", "stubborn"])
def test_stop_ends_the_whole_tree(code: str) -> None:
    process = start(code)
    assert len(process.alive()) == 3, "supervisor, engine and its child"
    process.stop()
    assert process.alive() == []
    process.stop()  # may be called again


def test_a_killed_supervisor_is_noticed_though_a_grandchild_holds_the_engines_pipe() -> None:
    """There is no end of file then: whoever waits for an answer would wait for the request's whole time-out."""
    process = start(POLITE)
    process.supervisor.kill()
    with pytest.raises(ChannelClosed) as closed:
        Channel(process).receive(60)
    assert closed.value.code == 128 + signal.SIGKILL
    assert len(process.alive()) == 1, "the grandchild, which has left the engine's session"
    process.stop()
    assert process.alive() == []


def test_what_an_engine_wrote_before_its_end_is_read() -> None:
    code = """import sys; print('{"event": "ready"}', flush=True); sys.exit(3)"""
    process = start_supervised(
        [sys.executable, "-c", code], env=dict(os.environ), log=subprocess.DEVNULL, grace_s=1, pipes=True
    )
    process.supervisor.wait()
    channel = Channel(process)
    assert channel.receive(60) == {"event": "ready"}
    with pytest.raises(ChannelClosed):
        channel.receive(60)
    process.stop()


def test_leaving_the_block_ends_the_tree_even_on_an_error() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        supervised_process(
            [sys.executable, "-c", POLITE], env=dict(os.environ), log=subprocess.DEVNULL, grace_s=1, pipes=True
        ) as process,
    ):
        raise ZeroDivisionError
    assert process.alive() == []


@pytest.mark.parametrize("code", [POLITE, STUBBORN], ids=["polite", "stubborn"])
@pytest.mark.parametrize("victim", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_the_tree_goes_with_its_creator(
    creator: Callable[..., Creator], own_locks: Path, code: str, victim: signal.Signals
) -> None:
    running = creator("command", code, 1.0)
    assert len(running.tree()) == 3
    assert not cores_free(Platform.CPU)
    os.kill(running.process.pid, victim)
    running.process.wait()
    assert wait_until(lambda: not running.tree() and cores_free(Platform.CPU), 10)


def test_cores_are_free_after_creator_and_supervisor_are_killed(
    creator: Callable[..., Creator], own_locks: Path
) -> None:
    """The engine's own child survives this double fault (it holds no lock); the next lease ends it."""
    from accuracy_core.engines.cores import acquire_cores

    running = creator("command", STUBBORN)
    running.kill(supervisor=True)
    assert wait_until(lambda: cores_free(Platform.CPU), 10)
    assert len(running.tree()) == 1
    with acquire_cores(Platform.CPU, timeout_s=0):
        assert running.tree() == []


def test_stop_sweeps_up_after_a_killed_supervisor() -> None:
    process = start(STUBBORN)
    process.supervisor.kill()
    assert process.wait(5) == 128 + signal.SIGKILL
    assert wait_until(lambda: not processes.is_alive(process.pid), 5), "the engine goes with its supervisor"
    assert len(process.alive()) == 1
    process.stop()
    assert process.alive() == []


def test_a_forked_child_of_the_creator_does_not_keep_the_engine_alive(
    creator: Callable[..., Creator], own_locks: Path, tmp_path: Path
) -> None:
    script = tmp_path / "forker.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "from accuracy_core.engines.supervised import start_supervised\n"
        "p = start_supervised([sys.executable, '-c', 'import time; time.sleep(600)'], env=dict(os.environ),"
        " log=subprocess.DEVNULL, grace_s=1)\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(60); os._exit(0)\n"
        "print(p.mark, child, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        mark, child = parent.stdout.readline().split()
        try:
            assert len(processes.marked(mark)) == 2
            parent.kill()
            assert wait_until(lambda: not processes.marked(mark), 10)
            assert processes.is_alive(int(child)), "the fork must still be there for this test to mean anything"
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize(("code", "expected"), [("exit(0)", 0), ("exit(7)", 7), ("import os; os.abort()", 128 + 6)])
def test_exit_code_is_the_commands(code: str, expected: int) -> None:
    process = start_supervised([sys.executable, "-c", code], env=dict(os.environ), log=subprocess.DEVNULL)
    assert process.wait(20) == expected
    process.stop()


def test_children_end_when_the_command_ends_by_itself() -> None:
    process = start(POLITE.replace("\ntime.sleep(600)\n", "\ntime.sleep(.3)\n"))
    assert process.wait(20) == 0
    assert process.alive() == []
    process.stop()


def test_command_that_does_not_exist() -> None:
    with pytest.raises(EngineStartError, match="no/such/python"):
        start_supervised(["/no/such/python"], env=dict(os.environ), log=subprocess.DEVNULL)
