"""Which Prefect API a run uses."""

from __future__ import annotations

import socket

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from accuracy_core.errors import InfrastructureError
from flows.local_api import local_api


def test_a_configured_api_that_is_not_there_is_named_without_its_password():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # bound and not listening: connections are refused
        url = f"http://user:secret@127.0.0.1:{port}/api"
        with (
            temporary_settings({PREFECT_API_URL: url}),
            pytest.raises(InfrastructureError, match="PREFECT_API_URL") as caught,
            local_api(),
        ):
            pass
    assert str(port) in caught.value.message
    assert "secret" not in str(caught.value)
