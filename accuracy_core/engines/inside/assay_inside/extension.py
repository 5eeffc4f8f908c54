"""Worker extension (`worker_extension_cls`): the engine's worker answers our calls and takes the fault in ASSAY_FAULT.

vLLM imports this module in every worker process before it makes the worker, for the server and the offline engine
alike; that is where the fault is hooked in.
"""

import ctypes
import functools
import importlib
import json
import os
import signal
import sys
from typing import Any, Dict, List

from assay_inside import conduct, faults, forcing, load_report

FAULT_VARIABLE = "ASSAY_FAULT"
USER_EXTENSION_VARIABLE = "ASSAY_USER_EXTENSION"
_PR_SET_PDEATHSIG = 1


def _user_extension() -> type:
    """The worker extension that the user asked for besides ours, or `object`."""
    name = os.environ.get(USER_EXTENSION_VARIABLE)
    if not name:
        return object
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


class WorkerExtension(_user_extension()):  # type: ignore[misc]
    """Methods for `collective_rpc`. Only plain values cross processes; tensors go into files."""

    def assay_modules(self) -> List[List[str]]:
        """[dotted name, class name] of the model's modules."""
        from assay_inside import steps, taps

        return [list(item) for item in taps.names(steps.model_of(self.model_runner))]

    def assay_set_fault(self, fault: str) -> Dict[str, Any]:
        """Take out the fault that is there and put in `fault`, as JSON ("null": none)."""
        faults.remove_all()
        wanted = json.loads(fault)
        try:
            return {"modules": faults.inject(self.model_runner, wanted) if wanted else [], "error": ""}
        except (ValueError, AttributeError, TypeError) as error:  # an error in a worker would end the engine
            return {"modules": [], "error": str(error)}

    def assay_observe(self) -> None:
        """From now on note how requests are run."""
        if getattr(self, "assay_observer", None) is None:
            self.assay_observer = conduct.Observer(self.model_runner)

    def assay_begin(self, requests: str) -> str:
        """Put hooks in place for `requests` (see `capturing.Capturing`), as JSON. Returns what is wrong, or ""."""
        from assay_inside import capturing

        self.assay_end()
        try:
            self.assay_capturing = capturing.Capturing(self.model_runner, capturing.parse(requests))
        except (ValueError, AttributeError, TypeError) as error:  # an error in a worker would end the engine
            return "%s: %s" % (type(error).__name__, error)
        return ""

    def assay_end(self) -> None:
        """Take the hooks away."""
        if getattr(self, "assay_capturing", None) is not None:
            self.assay_capturing.remove()
        self.assay_capturing = None

    def assay_take(self, request_id: str, tokens: List[int], path: str) -> Dict[str, Any]:
        """Write what was recorded of a request, whose prompt and output are `tokens`, to `path` plus `.rank<n>`.

        As `logits` float32 (tokens, vocab), by the first tensor-parallel rank, and the captures under their names.
        """
        import torch
        from safetensors.torch import save_file

        answer: Dict[str, Any] = {"rank": int(getattr(self, "rank", 0)), "rows": 0, "path": None, "error": ""}
        try:
            answer["prompt"] = forcing.take_prompt(request_id)
            observer = getattr(self, "assay_observer", None)
            answer["conduct"] = observer.take(request_id) if observer is not None else None
            rows = forcing.take_rows(request_id)
            logits = torch.stack(rows) if rows else None
            tensors: Dict[str, torch.Tensor] = {}
            capturing = getattr(self, "assay_capturing", None)
            if capturing is not None and request_id in capturing.requests:
                found = capturing.take(request_id, list(tokens), answer["rank"], logits)
                tensors = found.pop("tensors")
                answer.update(found)
        except (ValueError, RuntimeError, OSError) as error:
            answer["error"] = "%s: %s" % (type(error).__name__, error)
            return answer
        if logits is not None and _first_of_tensor_parallel():
            tensors["logits"] = logits
            answer.update(rows=len(logits), vocab=logits.shape[1], argmax=logits.argmax(-1).tolist())
        if tensors:
            answer["path"] = "%s.rank%d" % (path, answer["rank"])
            answer["names"] = sorted(tensors)
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, answer["path"])
        return answer


def _first_of_tensor_parallel() -> bool:
    """Every rank of a tensor-parallel group samples the same rows."""
    try:
        from vllm.distributed import get_tensor_model_parallel_rank

        return int(get_tensor_model_parallel_rank()) == 0
    except (ImportError, AssertionError):
        return True


def _end_with_parent() -> None:
    """Ask the kernel for SIGKILL when our parent dies: vLLM's own worker processes outlive a killed server."""
    if sys.platform == "linux" and os.getppid() > 1:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _inject_after_load(fault: Dict[str, Any]) -> None:
    from vllm.v1.worker.worker_base import WorkerBase

    make = WorkerBase.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        load = self.load_model

        def load_and_inject(*load_args: Any, **load_kwargs: Any) -> Any:
            result = load(*load_args, **load_kwargs)
            where = faults.inject(self.model_runner, fault)
            print("assay: fault %s injected into %s" % (fault["name"], ", ".join(where)), file=sys.stderr, flush=True)
            return result

        self.load_model = load_and_inject

    WorkerBase.__init__ = init


_end_with_parent()
if os.environ.get(load_report.VARIABLE):
    load_report.note_loads(os.environ[load_report.VARIABLE])
if os.environ.get(FAULT_VARIABLE):
    _inject_after_load(json.loads(os.environ[FAULT_VARIABLE]))
