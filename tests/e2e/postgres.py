"""A Postgres server of a test's own, on loopback, with a password, gone with the test."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accuracy_core.engines.server import free_port

NAME = "prefect"
PASSWORD = "se/c:ret"
START_TIMEOUT_S = 60


def programs() -> Path | None:
    """Folder of Postgres' programs, on PATH or where Debian has them; None without, or where nobody may run them."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders and (os.geteuid() or _user()) else None


@contextlib.contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """URL of an empty database for Prefect. `folder`: as `programs` gives it."""
    owner: dict[str, Any] = {} if os.geteuid() else {"user": _user()}  # Postgres refuses to run as root
    with tempfile.TemporaryDirectory(prefix="assay-postgres-") as home:
        if owner:
            shutil.chown(home, owner["user"])
        secret = Path(home, "password")
        secret.write_text(PASSWORD)
        data, port = Path(home, "data"), free_port()
        options = ["-A", "scram-sha-256", "-U", NAME, f"--pwfile={secret}", "--no-sync"]
        subprocess.run([folder / "initdb", "-D", data, *options], cwd=home, check=True, capture_output=True, **owner)
        server = subprocess.Popen(
            [folder / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", home, "-c", "fsync=off"],
            cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **owner,
        )  # fmt: skip
        try:
            _create_database(folder, port)
            yield f"postgresql+asyncpg://{NAME}:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/{NAME}"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown: clients are cut off
            server.wait(30)


def _create_database(folder: Path, port: int) -> None:
    command = [folder / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", NAME, NAME]
    deadline = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(
        command, env={**os.environ, "PGPASSWORD": PASSWORD}, capture_output=True, check=False
    ).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError("Postgres does not answer")
        time.sleep(0.2)


def _user() -> str | None:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None
