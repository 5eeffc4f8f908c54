"""What the orchestration costs: wall time of runs of the embedded model on vLLM, minus what their stages took.

`python benchmarks/overhead.py`: with real vLLM, on real Prefect workers with two hops to the device pool, uncached and
then cached; and without a worker, in the process of `assay run` against the same server. The work is the sum of the
stages' own records, so that both numbers are of one and the same run. Exit status 1 when more than 25 s are added to
the cached run, or more than 15 % to the uncached one without a worker; what two hops add to that is printed, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.orchestration.fleet import ROOT, Fleet

CACHED_S = 25.0
UNCACHED_SHARE = 0.15
TIMEOUT_S = 1800.0


def work(run_directory: Path) -> float:
    """Seconds that the stages took which did something."""
    records = [json.loads(path.read_text()) for path in (run_directory / "stages").glob("*.json")]
    return sum(record["duration_s"] for record in records if record["status"] == "done")


def deployed(fleet: Fleet, folder: Path) -> float:
    """Seconds of a run on workers, from the request to its end."""
    parameters: dict[str, Any] = {"engine": {"model": "embedded"}, "output_dir": str(folder)}
    began = time.monotonic()
    run_id = fleet.create("accuracy-debugger/adhoc", parameters=parameters)
    state = fleet.wait_final(run_id, TIMEOUT_S)["state"]
    taken = time.monotonic() - began
    if state["type"] != "COMPLETED":
        raise RuntimeError(f"{state['name']}: {state['message']}")
    return taken


def in_process(fleet: Fleet, folder: Path) -> float:
    """Seconds of the flow in the process of `assay run`, with nothing cached."""
    environment = {**os.environ, **fleet.hosts["device-pool"].environment}
    environment["PREFECT_API_URL"] = f"http://127.0.0.1:{fleet.port}/api"
    for name in ("ASSAY_CACHE_DIR", "VLLM_NEURON_GOLDEN_CACHE_DIR", "PREFECT_RESULTS_LOCAL_STORAGE_PATH"):
        environment[name] = str(folder.parent / "fresh" / name)
    command = [sys.executable, "-m", "flows.cli", "run", "--model", "embedded", "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    runs = fleet.ask("POST", "/flow_runs/filter", json={"flows": {"name": {"any_": ["accuracy-debugger"]}}})
    (run,) = (run for run in runs if run["deployment_id"] is None)
    return float(run["total_run_time"])


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="assay-overhead-"))
    try:
        # one host, as `assay up` sets it up: its workers share the store of results
        shared = {"PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "results")}
        with Fleet(folder, ["cpu-pool", "device-pool"], query_s=2, environment=shared) as fleet:
            two_hops = deployed(fleet, folder / "deployed")
            two_hops_work = work(folder / "deployed")
            cached = deployed(fleet, folder / "deployed")
            here = in_process(fleet, folder / "here")
            here_work = work(folder / "here")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    share = here / here_work - 1
    added = two_hops - two_hops_work
    print(f"uncached, on workers:     {two_hops:6.1f} s, stages {two_hops_work:6.1f} s, added {added:5.1f} s")
    print(f"cached, on workers:       {cached:6.1f} s, all of it added (wanted: at most {CACHED_S:.0f} s)")
    print(
        f"uncached, without worker: {here:6.1f} s, stages {here_work:6.1f} s, added {here - here_work:5.1f} s, "
        f"{share:.0%} (wanted: at most {UNCACHED_SHARE:.0%})"
    )
    return 0 if cached <= CACHED_S and share <= UNCACHED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
