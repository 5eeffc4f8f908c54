"""Kill what can be killed while an engine works, and look at what is left.

`python benchmarks/kill_matrix.py`: {flow, worker, supervisor, engine} x {TERM, KILL} x {eval, prompt}, on real Prefect
workers, with a light engine that never answers, in flows that only lease, start and wait; `--whole`: in Assay's own
device flows; `--real`: in those, with vLLM and the embedded model; `--cells flow-KILL-eval,…`: only some.

Each victim has a pool, a worker and cores of its own, so that the four rows go on side by side (one after the other
with `--real`). For each cell: engine processes left and cores held after the kill, the run's state, and whether the
next run starts on the same cores. The exit status is 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.orchestration.fleet import FINAL, Fleet, Host, fake_python, send
from flows.dispatch import SUBMISSIONS

VICTIMS = ("flow", "worker", "supervisor", "engine")
SIGNALS = ("TERM", "KILL")
STAGES = ("eval", "prompt")
PROMPT = "Q: 1+1\nA:"
#: what a log holds once the engine is at work; of vLLM's replay it holds nothing that could be waited for
AT_WORK = {"eval": ("eval_results/server.log", b"POST"), "prompt": ("prompt_analysis/engine.log", b"replay")}
AT_WORK_REAL = {**AT_WORK, "prompt": ("prompt_analysis/engine.log", b"")}
START_TIMEOUT_S = 240.0
OVER_POLL_S = 3.0
GONE_TIMEOUT_S = 30.0
END_TIMEOUT_S = 120.0


class _NeverBegan(TimeoutError):
    """No process of the run ever ran."""


@dataclass
class Cell:
    """One kill and what came of it. Times are seconds after the kill."""

    victim: str
    signal: str
    stage: str
    started_after_s: float = -1.0
    left: int = -1
    held: int = -1
    gone_after_s: float = -1.0
    state: str = ""
    next_starts: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.victim}-{self.signal}-{self.stage}"

    @property
    def good(self) -> bool:
        return not self.problem and (self.left, self.held, self.state, self.next_starts) == (0, 0, "Crashed", True)


class Lane:
    """One victim's cells, one after the other on one pool."""

    def __init__(self, fleet: Fleet, host: Host, cells: list[Cell], engine: dict[str, Any], flows: str) -> None:
        self.fleet, self.host, self.cells, self.engine, self.flows = fleet, host, cells, engine, flows
        self._count = 0
        self.started_after_s = 0.0

    def run(self) -> None:
        previous: Cell | None = None
        for cell in self.cells:
            try:
                run_id = self._start(cell.stage)
                cell.started_after_s = self.started_after_s
                if previous is not None:
                    previous.next_starts = True
                self._kill(cell, run_id)
                previous = cell
                print(f"{cell.name}: {cell.state}", file=sys.stderr, flush=True)
            except Exception as error:
                cell.problem = f"{type(error).__name__}: {error}"
                previous = None
                with contextlib.suppress(Exception):
                    self.fleet.restart(self.host)
        if previous is not None:
            try:
                run_id = self._start(STAGES[1])
                previous.next_starts = True
                self.fleet.cancel(run_id)
                self.fleet.wait_final(run_id, END_TIMEOUT_S)
            except Exception as error:
                previous.problem = f"{type(error).__name__}: {error}"

    def _start(self, stage: str) -> str:
        """A run whose engine is at work. One that its worker could not submit (the server is busy) is made again."""
        for _ in range(SUBMISSIONS - 1):
            with contextlib.suppress(_NeverBegan):
                return self._try_start(stage)
        return self._try_start(stage)

    def _try_start(self, stage: str) -> str:
        self._count += 1
        folder = self.fleet.folder / "runs" / f"{self.host.pool}-{self._count}"
        parameters = {
            "engine": self.engine,
            "evaluation": {"tasks": ["assay_arith"], "limit": 100, "num_concurrent": 1},
            "prompt_analysis": {"prompts": [PROMPT], "output_length": 2},
            "output_dir": str(folder),
        }
        began = time.monotonic()
        run_id = self.fleet.create(f"{self.flows}-{stage}/{self.host.pool}", parameters=parameters)
        path, words = (AT_WORK if "python" in self.engine else AT_WORK_REAL)[stage]

        def at_work() -> bool:
            log = folder / path
            return log.exists() and words in log.read_bytes() and self.host.engine() is not None

        asked = began

        def over() -> bool:
            nonlocal asked
            if time.monotonic() - asked < OVER_POLL_S:
                return False
            asked = time.monotonic()
            return self.fleet.run(run_id)["state"]["type"] in FINAL

        if not self.fleet.until(lambda: at_work() or over(), START_TIMEOUT_S) or not at_work():
            run = self.fleet.run(run_id)
            kind = _NeverBegan if run["start_time"] is None else TimeoutError
            raise kind(f"no engine at work: {run['state']['name']} {run['state']['message']}")
        self.started_after_s = time.monotonic() - began
        return run_id

    def _kill(self, cell: Cell, run_id: str) -> None:
        signum = signal.Signals[f"SIG{cell.signal}"]
        victim = self._victim(cell.victim, run_id)
        killed = time.monotonic()
        send(victim, signum)
        if cell.victim in ("supervisor", "engine") and cell.stage == "eval":
            self._kill_again(cell, run_id, victim, signum)  # a server that died is started again, once
            killed = time.monotonic()
        self.fleet.until(lambda: not self.host.engine_processes() and not self.host.cores_held(), GONE_TIMEOUT_S)
        cell.gone_after_s = time.monotonic() - killed
        cell.left = len(self.host.engine_processes()) + self._flow_alive(cell, run_id)
        cell.held = self.host.cores_held()
        if cell.victim == "worker":
            self.fleet.until(lambda: self.host.service.code() is not None, GONE_TIMEOUT_S)
            self.fleet.restart(self.host)
        cell.state = self.fleet.wait_final(run_id, END_TIMEOUT_S)["state"]["name"]

    def _kill_again(self, cell: Cell, run_id: str, first: int | None, signum: signal.Signals) -> None:
        def second() -> int | None:
            found = self._victim(cell.victim, run_id)
            return found if found != first and self.host.engine() else None

        if not self.fleet.until(second, START_TIMEOUT_S):
            raise TimeoutError("the evaluation was not tried again")
        send(second(), signum)

    def _victim(self, victim: str, run_id: str) -> int | None:
        if victim == "flow":
            return int(self.fleet.run(run_id)["infrastructure_pid"] or 0)
        if victim == "worker":
            return self.host.service.pid
        return self.host.supervisor() if victim == "supervisor" else self.host.engine()

    def _flow_alive(self, cell: Cell, run_id: str) -> int:
        """1 when the flow's process should be gone and is not."""
        if cell.victim not in ("flow", "worker"):
            return 0
        pid = self.fleet.run(run_id)["infrastructure_pid"]
        path = Path(f"/proc/{pid}/environ")

        def alive() -> bool:
            try:
                return run_id.encode() in path.read_bytes()
            except OSError:
                return False

        return int(not self.fleet.until(lambda: not alive(), GONE_TIMEOUT_S))


def measure(cells: list[Cell], *, real: bool, whole: bool) -> float:
    """Fill in `cells`. Returns the seconds it took, the server's start included."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="assay-kill-"))
    lanes: dict[str, list[Cell]] = {}
    for cell in cells:
        lanes.setdefault(cell.victim, []).append(cell)
    try:
        pools = [f"device-{victim}" for victim in lanes]
        with Fleet(folder, pools, query_s=1, light=not (real or whole)) as fleet:
            engine: dict[str, Any] = {"model": "embedded"}
            if not real:
                engine |= {"python": fake_python(folder), "env": {"FAKE_MODE": "hang"}}
            flows = "device" if real or whole else "light"
            work = [
                threading.Thread(target=Lane(fleet, fleet.hosts[f"device-{victim}"], rows, engine, flows).run)
                for victim, rows in lanes.items()
            ]
            for thread in work:
                thread.start()
                if real:
                    thread.join()
            for thread in work:
                thread.join()
    finally:
        if os.environ.get("KEEP"):
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return time.monotonic() - began


def show(cells: list[Cell], seconds: float) -> None:
    titles = ("victim", "signal", "stage", "at work", "left", "held", "gone after", "state", "next run")
    rows = [
        (
            cell.victim, cell.signal, cell.stage, f"{cell.started_after_s:.1f} s", str(cell.left), str(cell.held),
            f"{cell.gone_after_s:.1f} s", cell.state, "starts" if cell.next_starts else "DOES NOT START",
            "" if cell.good else f"WRONG {cell.problem}",
        )
        for cell in cells
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    for row in (titles, *rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=False)).rstrip())
    good = sum(cell.good for cell in cells)
    print(f"{good} of {len(cells)} as they must be, {seconds:.0f} s in all")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--real", action="store_true", help="vLLM and the embedded model instead of the light engine")
    parser.add_argument("--whole", action="store_true", help="Assay's own device flows, still with the light engine")
    parser.add_argument("--cells", help="such as flow-KILL-eval,worker-TERM-prompt; default: all")
    parser.add_argument("--json", type=Path, help="write the cells there, too")
    options = parser.parse_args()
    cells = [Cell(victim, name, stage) for victim in VICTIMS for name in SIGNALS for stage in STAGES]
    if options.cells:
        wanted = options.cells.split(",")
        unknown = set(wanted) - {cell.name for cell in cells}
        if unknown:
            parser.error(f"unknown cells: {', '.join(sorted(unknown))}")
        cells = [cell for cell in cells if cell.name in wanted]
    seconds = measure(cells, real=options.real, whole=options.whole)
    show(cells, seconds)
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) | {"good": cell.good} for cell in cells], indent=1))
    return 0 if all(cell.good for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
