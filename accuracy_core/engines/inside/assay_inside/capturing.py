"""What one replay asks for besides logits: hooks put in place before it, taken away with its tensors after it."""

import json
from typing import Any, Dict, List, Set

import torch

from assay_inside.kv import KvCapture
from assay_inside.kv_layout import UnreadableCache
from assay_inside.replace import Replacements
from assay_inside.snapshot import Snapshots
from assay_inside.steps import Steps
from assay_inside.taps import Taps

TAP_PREFIX = "tap."
KV_PREFIX = "kv."


class Capturing:
    """Hooks for requests {id: {"modules": [...], "kv": bool, "replacements": [...], "snapshot": {...} or None}}.

    Raises ValueError for what cannot be asked of this model; then nothing is left behind.
    """

    def __init__(self, runner: Any, requests: Dict[str, Dict[str, Any]]) -> None:
        self.requests = requests
        self.steps = Steps(runner, list(requests))
        self.taps = Taps(self.steps, {name: wanted.get("modules") or [] for name, wanted in requests.items()})
        self.kv_problem = ""
        self.kv = None
        snapshots = {name: wanted["snapshot"] for name, wanted in requests.items() if wanted.get("snapshot")}
        with_kv: Set[str] = {name for name, wanted in requests.items() if wanted.get("kv")} | set(snapshots)
        try:
            if with_kv:
                try:
                    self.kv = KvCapture(self.steps, with_kv)
                except UnreadableCache as error:
                    self.kv_problem = str(error)
            self.snapshots = Snapshots(self.steps, snapshots, self.kv, self.kv_problem)
            self.replacements = Replacements(
                self.steps, {name: wanted.get("replacements") or [] for name, wanted in requests.items()}
            )
            self.steps.install()
        except Exception:
            self.taps.remove()
            raise

    def take(self, request_id: str, tokens: List[int], rank: int, logits: Any) -> Dict[str, Any]:
        """{"tensors", "missing", "snapshots", "block_size", "error"} of a request whose prompt and output are `tokens`.

        The last token's K and V and module rows do not exist: it was sampled and never run.
        """
        wanted, positions = self.requests[request_id], len(tokens) - 1
        if self.steps.failure:
            return self._nothing(wanted)
        tensors: Dict[str, torch.Tensor] = {}
        missing: Dict[str, str] = {}
        found, absent = self.taps.take(request_id, wanted.get("modules") or [], positions)
        tensors.update({TAP_PREFIX + tap: tensor for tap, tensor in found.items()})
        missing.update({TAP_PREFIX + tap: reason for tap, reason in absent.items()})
        block_size = None
        if wanted.get("kv"):
            if self.kv is None:
                missing["kv"] = self.kv_problem
            else:
                found, absent = self.kv.take(self.steps.watched[request_id], positions)
                tensors.update({KV_PREFIX + name: tensor for name, tensor in found.items()})
                missing.update({name if name == "kv" else KV_PREFIX + name: why for name, why in absent.items()})
                block_size = self.kv.block_size
        return {
            "tensors": tensors,
            "missing": missing,
            "snapshots": self.snapshots.write(request_id, tokens, rank, logits),
            "block_size": block_size,
            "error": self.replacements.problem(request_id),
        }

    def _nothing(self, wanted: Dict[str, Any]) -> Dict[str, Any]:
        """The engine's calls could not be followed: a replacement that may not have taken place is an error."""
        reason = "the engine's calls could not be followed: %s" % self.steps.failure
        missing = dict.fromkeys([TAP_PREFIX + tap for tap in wanted.get("modules") or []], reason)
        if wanted.get("kv"):
            missing["kv"] = reason
        error = reason if wanted.get("replacements") or wanted.get("snapshot") else ""
        return {"tensors": {}, "missing": missing, "snapshots": [], "block_size": None, "error": error}

    def remove(self) -> None:
        self.steps.remove()
        self.taps.remove()
        self.replacements.remove()


def parse(text: str) -> Dict[str, Dict[str, Any]]:
    """Requests cross to the workers as JSON text: plain strings survive every executor of vLLM."""
    return json.loads(text)
