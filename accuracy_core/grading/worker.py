"""The thread that runs a submission: builds it, fills its cache, calls its step. Nothing that it says is trusted."""

from __future__ import annotations

import importlib.util
import inspect
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from accuracy_core.grading.guard import REPLY
from accuracy_core.grading.shape import KvCache, StepConfig, Weights, make_cache

#: dtypes that logits may have; the place is the code
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Refused(Exception):
    """The submission cannot be used; the text says why."""


class Worker:
    """Reads `build`, `begin SEED STEPS POISON` and `step` from `source`, answers each with one REPLY to `sink`."""

    def __init__(
        self, submission: Path, config: StepConfig, weights: Weights, device: str, tokens: torch.Tensor,
        source: int, sink: int,
    ) -> None:  # fmt: skip
        self._submission, self._config, self._weights, self._device = submission, config, weights, device
        self._tokens, self._source, self._sink = tokens, source, sink
        self._cache = KvCache(torch.empty(0), torch.empty(0))
        self._step: Any = None
        self._kept: torch.Tensor | None = None

    def run(self) -> None:
        """Until the other end closes, or something is raised, SystemExit too."""
        commands: dict[str, Callable[..., tuple[int, int, int]]]
        commands = {"build": self._build, "begin": self._begin, "step": self._call}
        try:
            with os.fdopen(self._source, "rb", buffering=0) as source, torch.inference_mode():
                for line in source:
                    words = line.decode().split()
                    found = commands[words[0]](*words[1:])
                    os.write(self._sink, struct.pack(REPLY, 0, *found))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".encode(errors="replace")[:2000]
            os.write(self._sink, struct.pack(REPLY, 1, 0, 0, len(text)) + text)

    def _build(self) -> tuple[int, int, int]:
        torch.set_num_threads(1)
        path = self._submission
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location("submission", path)
        if spec is None or spec.loader is None:
            raise Refused(f"{path.name} is no Python module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        build = getattr(module, "build", None)
        check_signature(build, "build", 2)
        assert build is not None
        with torch.inference_mode(False):
            self._step = build(self._config, self._weights)
        check_signature(self._step, "what build returns", 2)
        return 0, 0, 0

    def _begin(self, seed: str, steps: str, poison: str) -> tuple[int, int, int]:
        """A cache of its own for a sequence. `poison`: memory that torch hands out is NaN, and an unwritten element."""
        torch.utils.deterministic.fill_uninitialized_memory = poison == "1"  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(poison == "1", warn_only=True)
        with torch.inference_mode(False):  # tensors that a thread of the submission may write to as well
            cache = make_cache(self._config, int(seed), int(steps))
            self._cache = KvCache(cache.k.to(self._device), cache.v.to(self._device), cache.length)
        return 0, 0, 0

    def _call(self) -> tuple[int, int, int]:
        token_ids = self._tokens if self._device == "cpu" else self._tokens.to(self._device)
        logits = self._step(token_ids, self._cache)
        self._cache.length += 1
        shape = (self._config.batch, self._config.vocab)
        if type(logits) is not torch.Tensor or tuple(logits.shape) != shape or logits.dtype not in DTYPES:
            found = (
                f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, torch.Tensor) else type(logits).__name__
            )
            raise Refused(f"step returned {found}, wanted floating-point logits of shape {shape}")
        if not logits.is_contiguous():
            raise Refused("step returned logits that are not contiguous")
        self._kept = logits if logits.device.type == "cpu" else logits.cpu()  # alive until the next command
        return DTYPES.index(logits.dtype), self._kept.data_ptr(), self._kept.nbytes


def check_signature(function: Any, what: str, arguments: int) -> None:
    """Raises Refused when `function` cannot be called with that many arguments."""
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
