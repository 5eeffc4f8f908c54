"""The submission's own process: `python -m accuracy_core.grading.child`. Lines in on stdin, frames out on stdout.

    -> {"submission": FILE, "folder": FOLDER, "config": {...}, "weights": FILE, "device": "cpu", "limits": {...},
        "nonce": HEX}
    -> build                        <- DONE
    -> begin SEED STEPS POISON      <- DONE          a cache filled from the seed
    -> step COUNTED                 <- STARTED       ready, the profiler runs
    -> TOKEN...                     <- LOGITS, EVENTS when counted, DONE
                                    <- FAILED, a text; the process ends

It is confined and sealed before any of the submission's code runs. It never learns what is expected nor which tokens
come next: the grader compares. Nor does it tell the time: the grader takes it, from before it tells the tokens to
the last byte of LOGITS.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any

import torch

from accuracy_core.grading import sandbox
from accuracy_core.grading.guard import Channels, serve, tools
from accuracy_core.grading.seal import seal
from accuracy_core.grading.shape import StepConfig
from accuracy_core.grading.worker import Worker


def main() -> None:
    # the protocol's ends are taken away from the submission, which may print what it likes
    sink, source = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    job = json.loads(_line(source))
    config = StepConfig(**job["config"])
    weights = _weights(job)
    tokens = torch.zeros(config.batch, dtype=torch.int64)
    memory = (ctypes.c_int64 * config.batch).from_address(tokens.data_ptr())
    (worker_in, to_worker), (from_worker, worker_out) = os.pipe(), os.pipe()
    channels = Channels(source, sink, to_worker, from_worker)
    worker = Worker(Path(job["submission"]), config, weights, job["device"], tokens, worker_in, worker_out)
    box = tools(channels, bytes.fromhex(job["nonce"]), memory, job["device"])
    limits = job["limits"]
    sandbox.confine(
        Path(job["folder"]),
        sandbox.readable_for(job["device"]),
        devices=sandbox.devices_for(job["device"]),
        memory_bytes=limits["memory_bytes"],
        cpu_seconds=limits["cpu_seconds"],
        file_bytes=limits["file_bytes"],
    )
    del job, limits
    seal(("accuracy_core.grading", "__main__"))
    threading.Thread(target=worker.run, daemon=True).start()
    serve(box, 8 * config.batch * config.vocab)


def _line(source: int) -> bytes:
    """One line, and nothing after it."""
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(source, 1)
        if not byte:
            break
        found += byte
    return found


def _weights(job: dict[str, Any]) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor.to(job["device"]) for name, tensor in load_file(job["weights"]).items()}


if __name__ == "__main__":
    main()
