"""The UI's server may be away: a stage goes on, and its events find nobody to tell."""

from __future__ import annotations

import httpx
import pytest

from accuracy_core.pipeline import progress
from tasks import progress as module
from tasks.showing import showing


def test_a_failure_to_show_is_told_and_forgotten(caplog):
    with showing("the scores"):
        raise httpx.ConnectError("refused")
    assert "the scores cannot be shown in the UI: ConnectError" in caplog.text


def test_being_interrupted_is_no_failure_to_show():
    with pytest.raises(KeyboardInterrupt), showing("the scores"):
        raise KeyboardInterrupt


def test_without_an_artifact_progress_is_simply_not_shown(monkeypatch):
    def away(*arguments, **options):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(module, "create_progress_artifact", away)
    monkeypatch.setattr(module, "update_progress_artifact", lambda *a, **o: pytest.fail("there is nothing to update"))
    with module.progress_artifact("evaluate"):
        progress.report("evaluate", 1, 2)
