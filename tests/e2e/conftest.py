"""The whole tool as a user runs it: the `assay` command in a process of its own, the embedded model, real vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.engines import processes
from accuracy_core.engines.cores import cores_free
from accuracy_core.schemas import Platform

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 420
SECRET = "s3cr3t-v4lue"


@dataclass
class Assay:
    """A started `assay` command. `tag` is in the environment of every process that it starts."""

    process: subprocess.Popen[str]
    tag: str
    output: Path

    def finish(self, timeout_s: float = TIMEOUT_S) -> str:
        """Wait for the end; standard output and error."""
        text, _ = self.process.communicate(timeout=timeout_s)
        return text

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def relatives(self) -> list[int]:
        """Living processes that this command started, however they were reparented; itself excepted."""
        mine = self.process.pid
        return [
            pid
            for pid in processes.all_pids()
            if pid != mine
            and processes.is_alive(pid)
            and processes.environment_of(pid).get("ASSAY_TEST_TAG") == self.tag
        ]

    def engines(self) -> list[int]:
        """Living processes of an engine."""
        return [pid for pid in self.relatives() if processes.CORES_MARK in processes.environment_of(pid)]

    def report(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.output / "report.json").read_text())
        return data

    def wait_for(self, condition: Any, what: str, timeout_s: float = 180) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.process.communicate()[0]}"
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
            time.sleep(0.1)

    def wait_gone(self, timeout_s: float) -> list[int]:
        """What is left of its processes after at most `timeout_s`."""
        return processes.wait_gone(self.relatives(), timeout_s)


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[str]:
    """One temporary Prefect API for all commands of the session: each would start its own otherwise."""
    from flows.local_api import local_api

    with local_api() as url:
        yield url


def _hear_ctrl_c() -> None:
    """A suite that runs in the background has SIGINT ignored, and would pass that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def started(output: Path, *arguments: str, api: str | None, env: dict[str, str] | None = None) -> Iterator[Assay]:
    tag = os.urandom(8).hex()
    environment = {**os.environ, "ASSAY_TEST_TAG": tag, "COLUMNS": "160", **(env or {})}
    if api:
        environment["PREFECT_API_URL"] = api
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", "--output", str(output), *arguments],
        cwd=ROOT, env=environment, text=True, preexec_fn=_hear_ctrl_c,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    command = Assay(process, tag, output)
    try:
        yield command
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
        processes.end(command.relatives())


@pytest.fixture
def assay(tmp_path: Path, prefect_api: str) -> Iterator[Any]:
    """`assay("--limit", "4")` starts the command; whatever it leaves is ended after the test."""
    with contextlib.ExitStack() as stack:
        count = 0

        def start(*arguments: str, env: dict[str, str] | None = None, api: str | None = prefect_api) -> Assay:
            nonlocal count
            count += 1
            return stack.enter_context(started(tmp_path / f"run{count}", *arguments, api=api, env=env))

        yield start


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Assay, str]]:
    """One clean run of the embedded default, with no Prefect API configured; and what it printed.

    The engine gets a secret in its environment, which must stay there.
    """
    folder = tmp_path_factory.mktemp("clean")
    config = folder / "parameters.json"
    config.write_text(json.dumps({"engine": {"model": "embedded", "env": {"SOME_TOKEN": SECRET}}}))
    with started(folder / "run", "--config", str(config), api=None) as command:
        yield command, command.finish()


def cpu_is_free() -> bool:
    return cores_free(Platform.CPU)
