"""`assay up` on a fresh home, then everything from the UI in a browser: an ad hoc run by its form, and the nightly.

With $ASSAY_SCREENSHOTS set to a folder, the pictures of docs/nightly.md are written there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from accuracy_core.engines import processes
from accuracy_core.engines.server import free_port
from tests.e2e.conftest import ROOT, cpu_is_free

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: the UI was not tried in a browser"),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAGE_MS = 120_000
RUN_TIMEOUT_S = 900
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Up:
    """A running `assay up`, with an auth string."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.auth = ("assay", "for-the-test")
        self.matrix = folder / "matrix.yaml"
        self.log = folder / "up.log"
        self.tag = os.urandom(8).hex()
        environment = {
            **os.environ, "PREFECT_API_AUTH_STRING": ":".join(self.auth), "ASSAY_TEST_TAG": self.tag,
            "ASSAY_NIGHTLY_MATRIX": str(self.matrix),
        }  # fmt: skip
        command = [sys.executable, "-m", "flows.cli", "up", f"--port={self.port}", f"--home={folder / 'home'}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, f"--runs={folder / 'runs'}"], cwd=ROOT, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}/api", auth=self.auth, timeout=60)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 400
        while "ready. Ctrl-C" not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.5)

    def deployment(self, name: str) -> str:
        return str(self.http.get(f"/deployments/name/{name}").json()["id"])

    def newest_run(self, deployment: str) -> dict[str, Any]:
        """The run that was made by hand, as soon as it is there."""
        body = {
            "deployments": {"id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 50,
        }  # fmt: skip
        deadline = time.monotonic() + PAGE_MS / 1000
        while True:
            runs = self.http.post("/flow_runs/filter", json=body).json()
            found = [run for run in runs if not run["auto_scheduled"]]
            if found:
                return dict(found[0])
            assert time.monotonic() < deadline, "the UI made no run"
            time.sleep(0.5)

    def wait_final(self, run_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while True:
            run: dict[str, Any] = self.http.get(f"/flow_runs/{run_id}").json()
            if run["state"]["type"] in FINAL:
                return run
            assert time.monotonic() < deadline, run["state"]
            time.sleep(2)

    def artifacts(self, run_id: str) -> set[str]:
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}}}
        return {row["key"] for row in self.http.post("/artifacts/filter", json=body).json()}

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def left(self) -> list[int]:
        """Living processes that it started."""
        living = (pid for pid in processes.all_pids() if processes.is_alive(pid))
        return [pid for pid in living if processes.environment_of(pid).get("ASSAY_TEST_TAG") == self.tag]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("up"))
    try:
        made.wait_ready()
        yield made
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.stop()
        processes.end(made.left())


@pytest.fixture(scope="module")
def page(up: Up) -> Iterator[Any]:
    """A browser page of the UI, logged in."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        made = browser.new_page(viewport={"width": 1400, "height": 1000})
        made.set_default_timeout(PAGE_MS)
        made.goto(f"http://127.0.0.1:{up.port}/dashboard")
        made.get_by_placeholder("admin:pass").fill(":".join(up.auth))
        made.get_by_role("button", name="Login").click()
        made.wait_for_selector("text=Dashboard")
        yield made
        browser.close()


def field(page: Any, title: str) -> Any:
    """The form's part for the parameter `title`."""
    label = f"//span[contains(@class, 'schema-form-property__label')][starts-with(normalize-space(.), '{title}')]"
    return page.locator(f"xpath={label}/ancestor::div[contains(@class, 'p-label ')][1]").first


def show_artifacts(up: Up, page: Any, run_id: str) -> None:
    page.goto(f"http://127.0.0.1:{up.port}/runs/flow-run/{run_id}")
    page.get_by_text("Artifacts", exact=True).first.click()


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("ASSAY_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{name}.png")


def test_an_ad_hoc_run_is_started_by_its_form_and_shows_its_artifacts(up: Up, page: Any) -> None:
    deployment = up.deployment("accuracy-debugger/adhoc")
    page.goto(f"http://127.0.0.1:{up.port}/deployments/deployment/{deployment}/run")
    field(page, "Max Prompts").locator("input").fill("1")
    field(page, "Output Length").locator("input").fill("8")
    limit = field(page, "Limit")
    limit.get_by_text("int", exact=True).click()
    limit.locator("input[type=number]").fill("20")
    picture(page, "ui-form")
    page.get_by_role("button", name="Submit").click()
    run = up.wait_final(up.newest_run(deployment)["id"])
    assert run["state"]["name"] == "Completed", run["state"]
    assert run["parameters"]["parameters"]["evaluation"]["limit"] == 20
    assert run["parameters"]["parameters"]["prompt_analysis"]["max_prompts"] == 1
    assert {"summary", "report", "scores"} <= up.artifacts(run["id"])
    show_artifacts(up, page, run["id"])
    page.wait_for_selector("text=What this run says")
    page.wait_for_selector("text=Scores of")
    picture(page, "ui-run")
    assert cpu_is_free()


def quick_run(page: Any) -> None:
    """Press *Quick run* until a run is made: a busy server refuses, and a page that is being drawn loses a click."""
    from playwright.sync_api import TimeoutError as PageTimeoutError

    patience = PAGE_MS / 3
    for _ in range(3):
        with contextlib.suppress(PageTimeoutError):
            page.get_by_role("button", name="Run", exact=True).click(timeout=patience)
            with page.expect_response(_made_a_run, timeout=patience):
                page.get_by_text("Quick run").click(timeout=patience)
            return
        page.reload()
    raise AssertionError("the UI made no run")


def _made_a_run(answer: Any) -> bool:
    return bool(answer.ok and answer.url.endswith("/create_flow_run"))


def test_the_nightly_is_started_from_the_ui_and_says_how_every_row_ended(up: Up, page: Any) -> None:
    (results,) = (path for path in (up.folder / "runs").glob("embedded-*/eval_results"))
    row = {
        "engine": {"model": "embedded", "engine": "transformers"},
        "evaluation": {"results": str(results)},
        "prompt_analysis": {"max_prompts": 1, "output_length": 4},
    }
    up.matrix.write_text(yaml.safe_dump({"rows": [{"name": "good", **row}, {"name": "typo", "engin": {}}]}))
    deployment = up.deployment("nightly-regression/nightly")
    page.goto(f"http://127.0.0.1:{up.port}/deployments/deployment/{deployment}")
    quick_run(page)
    run = up.wait_final(up.newest_run(deployment)["id"])
    assert run["state"]["name"] == "ConfigurationFailed", run["state"]
    rows = "typo (accuracy), typo (logits), typo (modules)"
    assert f"3 ConfigurationFailed; 3 Completed: {rows}" in run["state"]["message"]
    show_artifacts(up, page, run["id"])
    page.wait_for_selector("text=Every row of the matrix")
    picture(page, "ui-nightly")


def test_a_wrong_auth_string_is_refused_and_ctrl_c_leaves_nothing(up: Up) -> None:
    assert httpx.get(f"http://127.0.0.1:{up.port}/api/flow_runs/count", auth=("assay", "wrong")).status_code == 401
    environment = {**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{up.port}/api", "PREFECT_API_AUTH_STRING": "a:b"}
    for module in (["deployments.bootstrap"], ["deployments.reconcile", "device-pool"], ["flows.cli", "run"]):
        done = subprocess.run(
            [sys.executable, "-m", *module], cwd=up.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 3, done.stdout + done.stderr
        assert "PREFECT_API_AUTH_STRING" in done.stdout + done.stderr
    up.stop()
    assert up.process.returncode == 0
    assert processes.wait_gone(up.left(), 10) == []
