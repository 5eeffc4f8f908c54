"""Shared by the tests of goldens: one thread, no shared store, a cache of its own per test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from accuracy_core.goldens import entry
from accuracy_core.goldens.location import CACHE_DIR_VARIABLE, MAX_BYTES_VARIABLE, S3_URI_VARIABLE


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "default-cache"))
    monkeypatch.delenv(S3_URI_VARIABLE, raising=False)
    monkeypatch.delenv(MAX_BYTES_VARIABLE, raising=False)
    monkeypatch.setattr(entry, "_verified", {})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="accuracy_core.goldens")
    return caplog
