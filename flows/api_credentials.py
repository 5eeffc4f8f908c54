"""Who we are to the Prefect API."""

from __future__ import annotations

from typing import Any


def api_auth_string() -> str:
    """`PREFECT_API_AUTH_STRING` of the environment or the profile, `user:password`; '' when none is set."""
    from prefect.settings import PREFECT_API_AUTH_STRING

    value: Any = PREFECT_API_AUTH_STRING.value()  # plain text, though the setting is declared as a secret
    return str(value.get_secret_value() if hasattr(value, "get_secret_value") else value or "")


def api_credentials() -> tuple[str, str] | None:
    """(user, password) for basic authentication; None when no auth string is set."""
    user, _, password = api_auth_string().partition(":")
    return (user, password) if user else None
