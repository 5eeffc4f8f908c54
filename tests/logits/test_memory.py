"""Memory beyond the inputs: a few buffers of one chunk, however many tokens there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "numerics.py"


def extra(tokens: int) -> float:
    """MiB at 2 prompts x vocabulary 128 256."""
    command = [sys.executable, str(BENCHMARK), "--memory", "2", str(tokens), "128256"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak counter")
def test_extra_memory_is_small_and_does_not_grow_with_tokens() -> None:
    few, many = extra(16), extra(64)  # inputs of 47 and 188 MiB
    assert few < 150
    assert many < few + 40
