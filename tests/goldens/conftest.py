"""Shared by the tests of goldens: one thread, no shared store, a cache of its own per test."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.goldens import entry, s3
from accuracy_core.goldens.location import CACHE_DIR_VARIABLE, LEASE_VARIABLE, MAX_BYTES_VARIABLE, S3_URI_VARIABLE
from accuracy_core.models import embedded_model

from .s3_server import ADMIN, BUCKET, FaultProxy, running_server, sign_in


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
    monkeypatch.delenv(LEASE_VARIABLE, raising=False)
    monkeypatch.setattr(entry, "_verified", {})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="accuracy_core.goldens")
    return caplog


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a real S3 server; tests use prefixes of their own."""
    with running_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def proxy(server: int) -> Iterator[FaultProxy]:
    faults = FaultProxy(server)
    yield faults
    faults.close()


@pytest.fixture
def uri(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A place of its own on the server, reached through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{proxy.port}")
    sign_in(monkeypatch, ADMIN)
    monkeypatch.setattr(s3, "_breakers", {})
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Of the bundled model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_model())


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Six that the bundled model answers."""
    lines = (embedded_model() / "test.jsonl").read_text().splitlines()[:6]
    return [f"Q: {json.loads(line)['question']}\nA:" for line in lines]
