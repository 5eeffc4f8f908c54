"""Dependencies point one way, and importing the core is cheap."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import accuracy_core

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers", "vllm", "lm_eval", "boto3", "plotly", "pandas", "prefect", "cloudpathlib"}


def test_import_contracts_hold():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_core_loads_nothing_heavy():
    code = "import sys, accuracy_core, accuracy_core.schemas; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_orchestrating_loads_nothing_heavy():
    """A parent flow, a worker's child and `assay up` start a process each: what these import, every run pays for."""
    code = (
        "import sys, pkgutil, importlib, flows, deployments\n"
        "for package in (flows, deployments):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not (HEAVY - {"prefect"}) & loaded
    assert {"prefect", "flows", "tasks"} <= loaded


@pytest.mark.parametrize("package", ["accuracy_core", "accuracy_core.goldens", "accuracy_core.calibration"])
def test_names_that_load_when_used_are_listed(package):
    """A shell completes what `dir` lists, `from package import *` takes what `__all__` lists."""
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize("name", accuracy_core.__all__)
def test_public_name_resolves(name):
    assert getattr(accuracy_core, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        accuracy_core.no_such_name  # noqa: B018
