from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pages():
    """Asked for by tests that look at the HTML pages."""


@pytest.fixture(autouse=True)
def _no_pages(request, monkeypatch):
    # Drawing is most of a run's time here, and only few tests look at the pages.
    if "pages" not in request.fixturenames and not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("accuracy_core.prompts.plugins.logit_artifacts._save_pages", lambda *_: None)


@pytest.fixture
def tokenizer():
    from prompt_fakes import FakeTokenizer

    return FakeTokenizer()
