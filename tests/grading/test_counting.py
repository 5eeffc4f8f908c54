"""What counts as a launch, from recorded events whose times are set by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.grading.counting import Event, count_kernels, count_operators, counter


def test_operators_inside_an_operator_are_what_counts():
    nested = [Event("whole", 0, 100), *(Event("mm", 10 * i, 8) for i in range(1, 9))]
    found = count_operators(nested)
    assert found.launches == 8
    assert (found.longest, found.total) == (100 - 8 * 8, 100)
    assert found.dominant == "whole"


def test_one_operator_is_one_launch_and_all_of_the_time():
    found = count_operators([Event("fused", 5, 50)])
    assert (found.launches, found.dominant_share) == (1, 1.0)


def test_threads_do_not_nest_in_each_other():
    found = count_operators([Event("waits", 0, 100, thread=1), Event("works", 10, 80, thread=2)])
    assert found.launches == 2
    assert found.dominant_share == pytest.approx(100 / 180)


def test_kernels_are_counted_and_copies_are_not():
    events = [
        Event("aten::mm", 0, 500),
        Event("gemm", 0, 90, on_device=True),
        Event("Memcpy HtoD", 90, 400, on_device=True),
        Event("zero_", 490, 10, on_device=True),
    ]
    found = count_kernels(events)
    assert (found.launches, found.dominant, found.dominant_share) == (2, "gemm", 0.9)


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_nothing_seen_is_an_error_of_measurement(name):
    with pytest.raises(NotMeasuredError, match="cannot be counted"):
        counter(name)([Event("ProfilerStep#1", 0, 5)])


def test_an_unknown_counter():
    with pytest.raises(ConfigurationError, match="cuda-graph"):
        counter("cuda-graph")


def test_the_script_for_a_card_says_that_there_is_none():
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_grading.py"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "not measured: no CUDA card at hand\n"
