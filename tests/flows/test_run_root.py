"""Where a run that was given no directory puts its files."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from accuracy_core.schemas import RunParameters
from flows import run_root
from flows.run_root import with_run_directory


@pytest.fixture
def worker(monkeypatch):
    """As if a worker had started us."""
    monkeypatch.setattr(run_root, "under_worker", lambda: True)
    began = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    monkeypatch.setattr(run_root, "flow_run", SimpleNamespace(id="0123456789ab", scheduled_start_time=began))
    monkeypatch.setenv("ASSAY_RUNS_DIR", "s3://bucket/runs/")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("given", "part", "expected"),
    [
        (None, None, "s3://bucket/runs/embedded-20260102-030405-01234567"),
        (None, "m/cpu/t-accuracy", "s3://bucket/runs/nightly-20260102-030405-01234567/m-cpu-t-accuracy"),
        (None, "../../x", "s3://bucket/runs/nightly-20260102-030405-01234567/..-..-x"),
        ("mine", None, "s3://bucket/runs/mine"),
        ("/data/mine", None, "/data/mine"),
        ("s3://other/x", "part", "s3://other/x"),
    ],
)
def test_under_a_worker_every_directory_is_below_the_root_or_absolute(given, part, expected):
    assert with_run_directory(RunParameters(output_dir=given), part=part).output_dir == expected


@pytest.mark.usefixtures("worker")
def test_without_a_root_it_is_the_users_home_not_the_workers_temporary_directory(monkeypatch):
    monkeypatch.delenv("ASSAY_RUNS_DIR")
    monkeypatch.setenv("HOME", "/home/u")
    assert with_run_directory(RunParameters()).output_dir.startswith("/home/u/assay-runs/embedded-")


def test_on_a_laptop_it_is_below_the_working_directory():
    assert with_run_directory(RunParameters()).output_dir.startswith("runs/embedded-")
    assert with_run_directory(RunParameters(output_dir="mine")).output_dir == "mine"
