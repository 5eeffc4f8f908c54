"""What orchestration costs: an uncached run of the embedded default, then the same run again from the caches.

`python benchmarks/cached_run.py` prints, for both, the wall time from the command's start to its end, the time that the
stages themselves took by their records, and the difference; and whether the engine was started. Limits (exit code 1
when one is missed): 15 % of the stages' time for the first, 25 s in all for the second. `--api URL` uses that Prefect
server; without it each run starts a temporary one, whose start counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accuracy_core.schemas import RunDir, StageRecord

ROOT = Path(__file__).resolve().parents[1]
MOST_UNCACHED = 0.15
MOST_CACHED_S = 25.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", help="URL of a running Prefect API")
    parser.add_argument("--output-length", default="16", help="tokens replayed per prompt")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-cached-run-") as folder:
        return measure(Path(folder), options)


def measure(folder: Path, options: argparse.Namespace) -> int:
    own = {
        "ASSAY_CACHE_DIR": folder / "cache",
        "VLLM_NEURON_GOLDEN_CACHE_DIR": folder / "goldens",
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": folder / "results",
        "PREFECT_HOME": folder / "prefect",
        "ASSAY_HISTORY_DIR": folder / "history",
    }
    environment = {**os.environ, **{name: str(path) for name, path in own.items()}}
    environment.pop("PREFECT_API_URL", None)
    if options.api:
        environment["PREFECT_API_URL"] = options.api
    within = True
    print(f"{'run':10} {'wall s':>8} {'stages s':>9} {'overhead s':>11} {'share':>7}  engine started")
    for name in ("uncached", "cached"):
        output = folder / "run"
        before = engine_logs(output)
        wall = run(output, environment, options.output_length)
        stages = sum(record.duration_s for record in records(output) if record.status == "done")
        share = (wall - stages) / stages if stages else float("nan")
        started = "yes" if engine_logs(output) != before else "no"
        print(f"{name:10} {wall:8.1f} {stages:9.1f} {wall - stages:11.1f} {share:7.0%}  {started}", flush=True)
        within = within and (share <= MOST_UNCACHED if name == "uncached" else wall <= MOST_CACHED_S)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0 if within else 1


def run(output: Path, environment: dict[str, str], output_length: str) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "flows.cli", "run", "--output", str(output), "--output-length", output_length]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run failed:\n{done.stdout}\n{done.stderr}")
    return time.monotonic() - began


def records(output: Path) -> list[StageRecord]:
    run_dir = RunDir.at(output)
    return [run_dir.read(path, StageRecord) for path in sorted((output / "stages").glob("*.json"))]


def engine_logs(output: Path) -> list[tuple[str, int]]:
    return [(str(path), path.stat().st_mtime_ns) for path in sorted(output.glob("*/*.log"))]


if __name__ == "__main__":
    sys.exit(main())
