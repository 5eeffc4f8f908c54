"""A samples file of any size is streamed: memory grows by some bytes per sample, not by its text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evals.results_maker import STAMP, sample, write_run

_MEASURE = """
import json, resource, sys
from accuracy_core.evals.analysis import run_task_analysis
from accuracy_core.evals.analyzer import LmEvalAnalyzer
result = run_task_analysis(LmEvalAnalyzer(), sys.argv[1], {"exact_match,none": 0.0}, sys.argv[2])
first = result.deviated_prompts[0]
print(json.dumps({
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "records": result.status.n_records["big"]["none"],
    "deviated": len(result.deviated_prompts),
    "prompt": len(first.prompt),
}))
"""


def measure(folder: Path, n: int, text: str) -> dict[str, float]:
    write_run(folder, {"big": [sample(0, 1.0)]})
    head, tail = json.dumps(sample(0, 1.0)), json.dumps(sample(0, 0.0))
    long = json.dumps(text)[1:-1]
    with (folder / f"samples_big_{STAMP}.jsonl").open("w", encoding="utf-8") as stream:
        for doc in range(n):
            line = tail if doc % 3 else head
            line = line.replace('"doc_id": 0', f'"doc_id": {doc}', 1).replace("Q: question 0", f"{long}{doc}", 1)
            stream.write(line + "\n")
    size = (folder / f"samples_big_{STAMP}.jsonl").stat().st_size / 2**20
    command = [sys.executable, "-c", _MEASURE, str(folder), str(folder / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    (folder / f"samples_big_{STAMP}.jsonl").unlink()
    found: dict[str, float] = json.loads(run.stdout)
    return found | {"size_mib": size}


@pytest.mark.slow
def test_peak_memory_is_flat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "a worked example with \n many words. " * 100
    small = measure(tmp_path / "small", 5_000, text)
    big = measure(tmp_path / "big", 60_000, text)
    with capsys.disabled():
        for found in (small, big):
            print(f"\n{found['size_mib']:.0f} MiB of samples: peak {found['peak_mib']:.0f} MiB", end="")
        print()
    assert big["size_mib"] > 200
    assert big["records"] == 60_000
    assert big["deviated"] == 40_000
    assert big["prompt"] > 3000
    # 1,000 prompts are written out whole; beyond that, a sample costs some numbers
    assert big["peak_mib"] - small["peak_mib"] < 40
