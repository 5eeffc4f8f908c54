"""The units: what matters for unattended hosts is in them, and systemd understands them."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "deployments" / "systemd").glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_everything_ends_with_the_service_and_it_comes_back(path):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    assert unit["Service"]["KillMode"] == "control-group"
    assert unit["Service"]["Restart"] == "always"
    assert "PASSWORD" not in path.read_text().upper()
    if "worker" in path.name:
        assert "deployments.reconcile %i" in unit["Service"]["ExecStartPre"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_them(path, tmp_path):
    name = path.name.replace("@", "@pool")
    text = path.read_text().replace("/opt/assay/.venv/bin/", "/bin/").replace("/bin/prefect", "/bin/true")
    (tmp_path / name).write_text(text.replace("/bin/python", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
    assert complaints == []
