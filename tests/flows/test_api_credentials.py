"""The auth string is a text in one version of Prefect's settings and a secret in another: both work."""

from __future__ import annotations

import httpx
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.api_credentials import api_auth_string, api_credentials
from flows.health import check_api
from flows.local_api import local_api


def test_user_and_password_of_the_settings():
    with temporary_settings({PREFECT_API_AUTH_STRING: "assay:a:b"}):
        assert api_auth_string() == "assay:a:b"
        assert api_credentials() == ("assay", "a:b")
    with temporary_settings({PREFECT_API_AUTH_STRING: None}):
        assert api_credentials() is None


@pytest.fixture
def asked(monkeypatch):
    seen = []

    def get(url, **more):
        seen.append((url, more.get("auth")))
        return httpx.Response(200, text='"3.9.1"', request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    return seen


def test_every_question_to_the_api_carries_them(asked):
    with temporary_settings({PREFECT_API_AUTH_STRING: "assay:pw", PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with local_api() as url:
            assert url == "http://127.0.0.1:9/api"
        assert "server" in check_api().evidence
    assert [auth for _, auth in asked] == [("assay", "pw")] * 2
