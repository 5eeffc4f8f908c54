"""What a submission may try to be faster, or look more fused, than it is. Every one scores 0."""

# ruff: noqa: E501 - the sources of submissions read better unbroken

from __future__ import annotations

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
PATCHED = """import accuracy_core.grading.counting as c, accuracy_core.grading.timing as t, time, struct, os
    c.COUNTERS["cpu"] = c.count_operators = lambda events: c.StepCount(1, 1, 1, "whole")
    time.perf_counter = lambda: 0.0
    import torch.autograd.profiler as p
    p.profile.__enter__ = lambda self: self
    torch._C._autograd._KinetoEvent.name = lambda self: "[hidden]"
    torch._C._autograd._ProfilerResult.events = lambda self: []
    struct.pack = lambda *a: b"" """


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


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        ("torch._C._autograd._enable_record_function(False)", "AttributeError"),
        ("torch.autograd._disable_profiler()", "AttributeError"),
        ("import sys; sys._current_frames()", "TamperingRefused"),
        ("import sys; sys.addaudithook(print)", "addaudithook"),
        ("import gc; gc.get_objects()", "TamperingRefused"),
        ("import gc; gc.callbacks.append(print)", "AttributeError"),
        ("import signal; signal.signal(signal.SIGUSR1, print)", "main thread"),
        ("import os; [os.write(fd, b'x' * 64) for fd in range(3, 12)]", ""),
    ],
    ids=["recording off", "profiler off", "frames", "audit hook", "objects", "collector", "signal handler",
         "writes everywhere"],
)  # fmt: skip
def test_what_measures_is_out_of_reach(submit, setup, says):
    result = submit(UNFUSED.format(call=PLAIN, setup=setup))
    assert result.score == 0
    assert result.error
    assert says in result.error


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
        ("    import os\n    open(f'/proc/{os.getppid()}/mem', 'rb')\n", "PermissionError"),
        ("    import os\n    open(f'/proc/{os.getppid()}/cmdline', 'rb')\n", "PermissionError"),
        ("    open('/etc/passwd')\n", "PermissionError"),
        ("    open('/dev/shm/full', 'wb')\n", "PermissionError"),
        ("    import os\n    os.symlink('/tmp', 'out')\n    open('out/escaped', 'w')\n", "PermissionError"),
        ("    import os\n    os.kill(os.getppid(), 9)\n", "PermissionError"),
        ("    import ctypes, os\n    n = os.getppid()\n    done = ctypes.CDLL(None, use_errno=True).syscall(234, n, n, 9)\n"
         "    raise ValueError(f'tgkill {done}')\n", "tgkill -1"),
        ("    import os, resource\n    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))\n", "PermissionError"),
        ("    import os\n    os.memfd_create('hoard')\n", "PermissionError"),
        ("    import ctypes\n    done = ctypes.CDLL(None, use_errno=True).syscall(425, 8, 0)\n"
         "    raise ValueError(f'io_uring {done}')\n", "io_uring -1"),
        ("    with open('large', 'wb') as file:\n        for _ in range(100):\n            file.write(bytes(1 << 20))\n",
         "OSError"),
        ("    print('x' * (1 << 22))\n    raise ValueError('printed')\n", "printed"),
    ],
    ids=["filled after return", "lazy tensor", "weights overwritten", "wrong while timed", "stale half",
         "grader's memory", "another process", "files of the system", "shared memory", "link out", "kills the grader",
         "signals by thread", "limits of the grader", "memory files", "io_uring", "large file", "prints much"],
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
