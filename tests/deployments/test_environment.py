"""Settings of server and workers: loopback, no telemetry, secrets in files of their owner only."""

from __future__ import annotations

import stat

import pytest

from accuracy_core.errors import ConfigurationError
from deployments import environment


def test_server_and_workers_stay_on_loopback_and_report_nothing(tmp_path):
    server = environment.server_settings(tmp_path, 4200, None)
    worker = environment.worker_settings(tmp_path, 4200, None, "runs")
    assert server["PREFECT_SERVER_API_HOST"] == worker["PREFECT_WORKER_WEBSERVER_HOST"] == "127.0.0.1"
    assert server["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert server["DO_NOT_TRACK"] == worker["DO_NOT_TRACK"] == "1"
    assert worker["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"
    assert "PREFECT_SERVER_API_AUTH_STRING" not in server


def test_the_encryption_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    first = environment.server_settings(tmp_path, 1, None)["PREFECT_SERVER_ENCRYPTION_KEY"]
    assert environment.server_settings(tmp_path, 1, None)["PREFECT_SERVER_ENCRYPTION_KEY"] == first
    assert len(first) == 44
    assert stat.S_IMODE((tmp_path / "encryption-key").stat().st_mode) == 0o600


def test_an_auth_string_is_made_on_demand_kept_and_given_to_both_sides(tmp_path, monkeypatch):
    for name in (environment.AUTH, environment.SERVER_AUTH):
        monkeypatch.delenv(name, raising=False)
    assert environment.auth_string(tmp_path, make=False) is None
    made = environment.auth_string(tmp_path, make=True)
    assert made is not None
    assert made.startswith("assay:")
    assert environment.auth_string(tmp_path, make=False) == made
    assert stat.S_IMODE((tmp_path / "auth-string").stat().st_mode) == 0o600
    assert environment.server_settings(tmp_path, 1, made)[environment.SERVER_AUTH] == made
    assert environment.worker_settings(tmp_path, 1, made, "")[environment.AUTH] == made


def test_an_auth_string_without_a_password_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.AUTH, "nopassword")
    with pytest.raises(ConfigurationError, match="user:password"):
        environment.auth_string(tmp_path, make=False)
