"""Isolation of every test run: its own locks, caches and Prefect home, so that it disturbs nobody and nobody it."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

_SCRATCH = tempfile.mkdtemp(prefix="assay-tests-")
_ISOLATED = {
    "ASSAY_LOCK_DIR": "locks",
    "ASSAY_CACHE_DIR": "cache",
    "VLLM_NEURON_GOLDEN_CACHE_DIR": "goldens",
    "PREFECT_HOME": "prefect",
}
for _name, _folder in _ISOLATED.items():  # at import: Prefect reads its home when it is first imported
    os.environ[_name] = os.path.join(_SCRATCH, _folder)
os.environ.pop("PREFECT_API_URL", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)
