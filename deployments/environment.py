"""Settings of the Prefect server and its workers on one machine: loopback only, no telemetry, nothing in clear."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from cryptography.fernet import Fernet

from accuracy_core.errors import ConfigurationError

HOST = "127.0.0.1"
QUERY_S = 2
#: a run says this often that it is alive
HEARTBEAT_S = 60
#: who may use the API, `user:password`
AUTH = "PREFECT_API_AUTH_STRING"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
#: secrets of the server: whoever starts both gives them to it alone, not to workers and the runs that they start
SERVER_ONLY = (
    "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_API_DATABASE_PASSWORD",
    "PREFECT_SERVER_DATABASE_PASSWORD",
    "PREFECT_SERVER_ENCRYPTION_KEY",
)
_KEY_FILE = "encryption-key"
_AUTH_FILE = "auth-string"


def client_settings(home: Path, port: int, auth: str | None) -> dict[str, str]:
    """For everything that talks to the server. `auth` None: no auth."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        **({AUTH: auth} if auth else {}),
    }


def server_settings(home: Path, port: int, auth: str | None) -> dict[str, str]:
    """For the server: blocks encrypted with a key that is not in the database, leases that survive a restart."""
    return {
        **client_settings(home, port, auth),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ENCRYPTION_KEY": _kept(home / _KEY_FILE, lambda: Fernet.generate_key().decode()),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        **({SERVER_AUTH: auth} if auth else {}),
    }


def worker_settings(home: Path, port: int, auth: str | None, runs: str) -> dict[str, str]:
    """For the workers and the runs they start. `runs` is where run directories go."""
    return {
        **client_settings(home, port, auth),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_S),
        "PREFECT_WORKER_WEBSERVER_HOST": HOST,  # its default listens on every interface, should it be switched on
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "ASSAY_RUNS_DIR": runs,
    }


def auth_string(home: Path, *, make: bool) -> str | None:
    """From the environment, else the one kept under `home`, else a new one if `make`, else None.

    Raises ConfigurationError when the environment holds none of the form `user:password`.
    """
    given = os.environ.get(SERVER_AUTH) or os.environ.get(AUTH)
    if given:
        if ":" not in given:
            raise ConfigurationError(f"${AUTH} is not of the form user:password", fix="set it, or unset it")
        return given
    path = home / _AUTH_FILE
    if make or path.exists():
        return _kept(path, lambda: f"assay:{secrets.token_urlsafe(18)}")
    return None


def _kept(path: Path, make: Callable[[], str]) -> str:
    """Text of a file that only its owner can read; made once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = make()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    return path.read_text(encoding="utf-8").strip()
