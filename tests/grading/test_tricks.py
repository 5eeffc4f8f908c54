"""What a submission may try to be faster, or look more fused, than it is. Every one scores 0."""

# ruff: noqa: E501 - the sources of submissions read better unbroken

from __future__ import annotations

import platform

import pytest

from tests.grading.conftest import confinable

pytestmark = [pytest.mark.slow, confinable]

#: unfused work and a name for it: everything that hides its operators would score
UNFUSED = """
import torch
from accuracy_core.grading import unfused
from accuracy_core.grading.shape import KvCache

def build(config, weights):
    inner = unfused.build(config, weights)

    @torch.library.custom_op("trick::whole", mutates_args=("k", "v"))
    def whole(ids: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
        return {call}

    {setup}
    return lambda ids, cache: whole(ids, cache.k, cache.v, cache.length)
"""
IN_A_THREAD = "pool.submit(torch.inference_mode()(inner), ids, KvCache(k, v, length)).result()"
PLAIN = "inner(ids, KvCache(k, v, length))"
POOL = "from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(1)"
PATCHED = """import accuracy_core.grading.counting as c, time
    c.COUNTERS["cpu"] = c.count_operators = lambda events: c.StepCount(1, 1, 1, "whole")
    time.perf_counter = lambda: 0.0
    import torch.autograd.profiler as p
    p.profile.__enter__ = lambda self: self
    torch._C._autograd._KinetoEvent.name = lambda self: "[hidden]"
    torch._C._autograd._ProfilerResult.events = lambda self: []"""


@pytest.mark.parametrize(
    ("call", "setup"),
    [
        (IN_A_THREAD, POOL),
        (PLAIN, PATCHED),
    ],
    ids=["another thread computes", "grader, clock and profiler patched"],
)
def test_hidden_operators_are_counted(submit, call, setup):
    result = submit(UNFUSED.format(call=call, setup=setup))
    correct, launches, _ = result.gates
    assert (correct.passed, launches.passed, result.score) == (True, False, 0), result
    assert launches.value > 50


#: none may succeed; each is code that a submission runs while it is built
ATTEMPTS = {
    "recording off": "torch._C._autograd._enable_record_function(False)",
    "profiler off": "torch.autograd._disable_profiler()",
    "frames of other threads": "sys._current_frames()",
    "audit hook": "hit = []; sys.addaudithook(lambda *a: hit.append(a)); open(os.devnull).close(); hit[0]",
    "all objects": "gc.get_objects()",
    "collector's callbacks": "gc.callbacks.append(print)",
    "another collector module": "sys.modules.pop('gc'); import gc",
    "signal handler": "signal.signal(signal.SIGUSR1, print)",
    "fork": "os.fork()",
    "program": "subprocess.run(['true'])",
    "socket": "socket.socket()",
    "outside the folder": "open('/tmp/outside-the-folder', 'w')",
    "grader's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "another process": "open(f'/proc/{os.getppid()}/cmdline', 'rb')",
    "own memory": "open('/proc/self/mem', 'r+b')",
    "files of the system": "open('/etc/passwd')",
    "shared memory": "open('/dev/shm/full', 'wb')",
    "link out": "os.symlink('/tmp', 'out'); open('out/escaped', 'w')",
    "kills the grader": "os.kill(os.getppid(), 9)",
    "kills it by thread": "called(234, os.getppid(), os.getppid(), 9)",
    "kills it by descriptor": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "limits of the grader": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "its priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "its cores": "os.sched_setaffinity(os.getppid(), [0])",
    "memory files": "os.memfd_create('hoard')",
    "io_uring": "called(425, 8, 0)",
    "large file": "open('large', 'wb', buffering=0).write(bytes(65 << 20)) == 65 << 20 or 1 / 0",
    "too much memory": "torch.ones(1 << 40)",
}

TRYING = """
import ctypes, fcntl, gc, os, resource, signal, socket, subprocess, sys
import torch

def called(number, *arguments):
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments) < 0:
        raise OSError

def build(config, weights):
    succeeded = []
    for name, attempt in ATTEMPTS.items():
        try:
            exec(attempt, globals())
            succeeded.append(name)
        except Exception:
            pass
    raise ValueError(f"succeeded: {succeeded}")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are those of x86_64")
def test_what_is_out_of_reach(submit):
    result = submit(f"ATTEMPTS = {ATTEMPTS!r}\n{TRYING}")
    assert result.error == "ValueError: succeeded: []"
    assert (result.score, result.refused) == (0, True)


def test_another_abi_is_killed(submit):
    """Numbers of the x32 ABI reach the same calls past a filter that only knows the usual ones."""
    result = submit("import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 57)\n")
    assert "SIGSYS" in result.error


def test_answers_cannot_be_forged(submit):
    result = submit("import os\nfor fd in range(3, 12):\n    try: os.write(fd, b'x' * 64)\n    except OSError: pass\n")
    assert result.score == 0
    assert result.error


RIGHT = "import fused_right\ndef build(config, weights):\n    step = fused_right.build(config, weights)\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    import torch, threading\n    def later(t, c):\n        out = torch.empty(1, config.vocab)\n"
         "        ids, n = t.clone(), c.length\n"
         "        def fill():\n            import time; time.sleep(.05); c.length = n; out.copy_(step(ids, c))\n"
         "        threading.Thread(target=fill).start()\n        return out\n    return later\n", "sequence"),
        ("    import torch\n    class Lazy(torch.Tensor):\n        pass\n"
         "    return lambda t, c: step(t, c).as_subclass(Lazy)\n", "wanted floating-point"),
        ("    seen = {}\n    def known(t, c):\n        key = (int(t), c.length)\n"
         "        if key not in seen:\n            seen[key] = step(t, c).clone()\n        return seen[c.length and key]\n"
         "    for w in weights.values():\n        w.view(dtype=__import__('torch').uint8).zero_()\n    return known\n", ""),
        ("    calls = []\n    def wears_off(t, c):\n        calls.append(1)\n        out = step(t, c)\n"
         "        return out if len(calls) <= 8 else out * 0\n    return wears_off\n", "timed repetition"),
        ("    half = config.vocab // 2\n    import torch\n    mine = torch.empty(1, config.vocab)\n"
         "    def half_written(t, c):\n        mine[:, :half] = step(t, c)[:, :half]\n        return mine\n"
         "    return half_written\n", "nobody wrote"),
        ("    print('x' * (1 << 22))\n    raise ValueError('printed')\n", "printed"),
    ],
    ids=["filled after return", "lazy tensor", "weights overwritten", "wrong while timed", "stale half",
         "prints much"],
)  # fmt: skip
def test_what_gains_nothing(submit, body, says):
    result = submit(RIGHT + body)
    assert result.score == 0
    assert says in result.error + result.gates[0].detail, result


def test_sequences_differ_from_grading_to_grading_and_can_be_repeated(submit, fused):
    from tests.grading.conftest import run

    first, again, other = (run(fused, seed=5), run(fused, seed=5), run(fused))
    assert first.gates[0] == again.gates[0]
    assert other.seed != 5
    assert other.gates[0].value != first.gates[0].value
