"""The submission's own process: `python -m accuracy_core.grading.child`. JSON lines in on stdin and out on stdout.

    -> {"submission": FILE, "folder": FOLDER, "config": {...}, "weights": FILE, "device": "cpu", "limits": {...}}
    <- {"event": "built"}
    -> {"op": "run", "cache_seed": N, "token_seed": N, "steps": N, "poison": BOOL, "out": FILE}
    <- {"event": "ran"}                        logits float32 (steps, batch, vocab) in FILE
    -> {"op": "count", "cache_seed": N, "token_seed": N}
    <- {"event": "counted", "launches": N, "dominant_share": X, "dominant": NAME}
    <- {"event": "failed", "reason": TEXT}     the process ends

It is confined before any of the submission's code runs. It never learns what is expected: the parent compares. Nor does
it tell the time: the parent takes it.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

from accuracy_core.grading import sandbox
from accuracy_core.grading.counting import counter
from accuracy_core.grading.shape import KvCache, StepConfig, make_cache, make_tokens


class Refused(Exception):
    """The submission cannot be used; the text says why."""


class Runner:
    def __init__(self, job: dict[str, Any]) -> None:
        from safetensors.torch import load_file

        torch.set_num_threads(1)
        self.config = StepConfig(**job["config"])
        self.device = job["device"]
        self._count = counter(self.device)
        weights = {name: tensor.to(self.device) for name, tensor in load_file(job["weights"]).items()}
        limits = job["limits"]
        sandbox.confine(Path(job["folder"]), memory_bytes=limits["memory_bytes"], cpu_seconds=limits["cpu_seconds"])
        self.step = self._build(Path(job["submission"]), weights)

    def _build(self, path: Path, weights: dict[str, torch.Tensor]) -> Any:
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location("submission", path)
        if spec is None or spec.loader is None:
            raise Refused(f"{path.name} is no Python module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        build = getattr(module, "build", None)
        _check_signature(build, "build", 2)
        assert build is not None
        step = build(self.config, weights)
        _check_signature(step, "what build returns", 2)
        return step

    def run(self, request: dict[str, Any]) -> None:
        """All steps of one sequence; the logits go to a file."""
        from safetensors.torch import save_file

        cache, tokens = self._inputs(request, int(request["steps"]))
        torch.utils.deterministic.fill_uninitialized_memory = bool(request["poison"])  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(bool(request["poison"]), warn_only=True)
        rows = []
        with torch.inference_mode():
            for ids in tokens:
                rows.append(self._checked(self.step(ids, cache)).detach().to("cpu", torch.float32, copy=True))
                cache.length += 1
        save_file({"logits": torch.stack(rows)}, request["out"])

    def count(self, request: dict[str, Any]) -> dict[str, Any]:
        torch.use_deterministic_algorithms(False)
        cache, tokens = self._inputs(request, 1)
        with torch.inference_mode():
            ids = tokens[0]
            self.step(ids, cache)  # the first call may compile or allocate
            found = self._count(lambda: self.step(ids, cache))
        return {"launches": found.launches, "dominant_share": found.dominant_share, "dominant": found.dominant}

    def _inputs(self, request: dict[str, Any], steps: int) -> tuple[KvCache, torch.Tensor]:
        cache = make_cache(self.config, int(request["cache_seed"]), steps)
        tokens = make_tokens(self.config, int(request["token_seed"]), steps)
        return KvCache(cache.k.to(self.device), cache.v.to(self.device), cache.length), tokens.to(self.device)

    def _checked(self, logits: Any) -> torch.Tensor:
        shape = (self.config.batch, self.config.vocab)
        if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != shape or not logits.is_floating_point():
            found = (
                f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, torch.Tensor) else type(logits).__name__
            )
            raise Refused(f"step returned {found}, wanted floating-point logits of shape {shape}")
        return logits


def _check_signature(function: Any, what: str, arguments: int) -> None:
    if not callable(function):
        raise Refused(
            f"{what} is not a function: a submission defines build(config, weights) -> step(token_ids, cache)"
        )
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError as error:
        raise Refused(f"{what} does not take {arguments} arguments: {error}") from error
    except ValueError:  # built in C: it has no signature to look at
        return


def serve(source: TextIO, sink: TextIO) -> int:
    """Answer requests until the input ends. Returns the exit code."""

    def send(**message: Any) -> None:
        sink.write(json.dumps(message) + "\n")
        sink.flush()

    try:
        runner = Runner(json.loads(source.readline()))
        send(event="built")
        for line in source:
            request = json.loads(line)
            if request["op"] == "run":
                runner.run(request)
                send(event="ran")
            else:
                send(event="counted", **runner.count(request))
    except BaseException as error:  # the submission's code may raise anything, SystemExit too
        send(event="failed", kind=type(error).__name__, reason=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


def main() -> None:
    # the protocol's ends are taken away from the submission, which may print what it likes
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    source = os.fdopen(os.dup(0), "r", encoding="utf-8")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os._exit(serve(source, sink))


if __name__ == "__main__":
    main()
