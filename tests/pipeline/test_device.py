"""Whoever waits for the device is told who holds it; `assay cores` tells everybody."""

from __future__ import annotations

import json
import threading

import pytest
from typer.testing import CliRunner

from accuracy_core.engines.cores import acquire_cores, cores_free
from accuracy_core.errors import DeviceBusyError
from accuracy_core.pipeline import device, progress
from accuracy_core.schemas import EngineSpec, Platform
from flows.cli import app

SPEC = EngineSpec(model="embedded")
NOTE = "evaluation of [bold]somebody's[/bold] model"


@pytest.fixture
def held(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_LOCK_DIR", str(tmp_path / "locks"))
    with acquire_cores(Platform.CPU, 1, timeout_s=0, note=NOTE) as lease:
        yield lease


def test_the_wait_says_who_holds_the_cores_and_ends_with_them(held, monkeypatch):
    monkeypatch.setattr(device, "TELL_S", 0.3)
    heard: list[progress.Event] = []

    def give_back_after_two(event):
        heard.append(event)
        if len(heard) == 2:
            threading.Thread(target=held.release).start()

    with progress.listening(give_back_after_two):
        lease = device.wait_for_cores(SPEC, "evaluate", timeout_s=60, note="mine")
    assert not cores_free(Platform.CPU)
    lease.release()
    assert {event.stage for event in heard} == {"evaluate"}
    assert all("waiting for the device: core 0: process" in event.message for event in heard)
    assert all(NOTE in event.message for event in heard)


@pytest.mark.parametrize("timeout_s", [0, 1])
def test_a_wait_that_is_too_long_names_the_holder_and_the_whole_wait(held, monkeypatch, timeout_s):
    monkeypatch.setattr(device, "TELL_S", 0.4)
    with pytest.raises(DeviceBusyError, match=f"not free after {timeout_s} s") as caught:
        device.wait_for_cores(SPEC, "evaluate", timeout_s=timeout_s, note="mine")
    assert NOTE in caught.value.message


def test_free_cores_are_taken_without_a_word(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_LOCK_DIR", str(tmp_path / "locks"))
    heard: list[progress.Event] = []
    with progress.listening(heard.append), device.wait_for_cores(SPEC, "evaluate", timeout_s=60, note="mine"):
        pass
    assert heard == []


def test_cores_are_listed_for_people_and_for_machines(held, monkeypatch):
    monkeypatch.setenv("ASSAY_NEURON_CORES", "2")
    text = CliRunner().invoke(app, ["cores"], env={"COLUMNS": "160"})
    assert text.exit_code == 0
    assert NOTE in text.output
    data = json.loads(CliRunner().invoke(app, ["cores", "--json"]).output)
    rows = {(row["platform"], row["core"]): row for row in data["cores"]}
    assert (rows["cpu", 0]["state"], rows["cpu", 0]["note"]) == ("held", NOTE)
    assert rows["cpu", 0]["since"].endswith("+00:00")
    assert isinstance(rows["cpu", 0]["pid"], int)
    free = {"platform": "neuron", "core": 1, "state": "free", "pid": None, "note": None, "since": None}
    assert rows["neuron", 1] == free
    only = json.loads(CliRunner().invoke(app, ["cores", "--json", "--platform", "neuron"]).output)
    assert [row["platform"] for row in only["cores"]] == ["neuron", "neuron"]


def test_wrong_set_up_of_cores_is_said(monkeypatch):
    assert CliRunner().invoke(app, ["cores", "--platform", "neutron"]).exit_code == 3
    monkeypatch.setenv("ASSAY_NEURON_CORES", "many")
    result = CliRunner().invoke(app, ["cores"])
    assert result.exit_code == 3
    assert "ASSAY_NEURON_CORES" in result.output
