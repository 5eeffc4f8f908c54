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
from typing import Any, Dict, Optional

from assay_inside import faults, forcing

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

    def assay_take_rows(self, request_id: str, path: str) -> Optional[Dict[str, Any]]:
        """Write the recorded rows of `request_id` to `path` as `logits` float32 (tokens, vocab).

        Returns their number and argmax, or None in a worker that does not sample.
        """
        import torch
        from safetensors.torch import save_file

        rows = forcing.take_rows(request_id)
        if not rows:
            return None
        logits = torch.stack(rows)
        save_file({"logits": logits}, path)
        return {"rows": len(rows), "vocab": logits.shape[1], "argmax": logits.argmax(-1).tolist()}


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
if os.environ.get(FAULT_VARIABLE):
    _inject_after_load(json.loads(os.environ[FAULT_VARIABLE]))
