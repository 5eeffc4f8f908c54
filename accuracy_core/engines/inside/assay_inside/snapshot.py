"""Inputs of chosen engine calls, saved so that the step can be replayed off the device.

One safetensors file and one JSON file per call; `accuracy_core.engines.snapshot` reads and replays them.
"""

import dataclasses
import json
import os
from typing import Any, Dict, List, Optional

import torch

from assay_inside.steps import Rows, Steps

FORMAT = 1


class Snapshots:
    """`wanted`: request id -> {"folder", "calls", "positions", "budget"}; without calls and positions: the first."""

    def __init__(self, steps: Steps, wanted: Dict[str, Dict[str, Any]], kv: Any, kv_problem: str) -> None:
        self.steps, self.wanted, self.kv, self.kv_problem = steps, wanted, kv, kv_problem
        self._taken: Dict[str, List[Dict[str, Any]]] = {}
        if wanted:
            steps.before_forward.append(self._look)

    def _look(self, args: Any, kwargs: Dict[str, Any]) -> None:
        for rows in self.steps.rows:
            name = rows.request.request_id
            spec = self.wanted.get(name)
            if spec is None or len(self._taken.get(name, ())) >= int(spec.get("budget") or 1):
                continue
            calls, positions = spec.get("calls") or [], spec.get("positions") or []
            asked = rows.request.calls in calls or any(
                rows.first <= position < rows.first + rows.count for position in positions
            )
            if asked or not (calls or positions):
                self._taken.setdefault(name, []).append(self._take(rows, args, kwargs))

    def _take(self, rows: Rows, args: Any, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        """Before the model runs: what it is given, and the K and V that its attention will read."""
        tensors: Dict[str, torch.Tensor] = {}
        part = slice(rows.start, rows.start + rows.count)
        for index, name in enumerate(("input_ids", "positions")):
            value = kwargs.get(name, args[index] if index < len(args) else None)
            if isinstance(value, torch.Tensor):
                value = value[0] if value.dim() > 1 and name == "positions" else value
                tensors[name] = value[part].detach().to("cpu", copy=True)
        missing = {}
        if rows.first and self.kv is not None:
            found, missing = self.kv.take(rows.request, rows.first)
            tensors.update({"kv." + name: tensor for name, tensor in found.items()})
        elif rows.first:
            missing = {"kv": self.kv_problem}
        scalars = self._attention(rows, tensors)
        about = {
            "call": rows.request.calls,
            "first_position": rows.first,
            "tokens": rows.count,
            "prompt_length": rows.request.prompt_length,
            "batch_tokens": self.steps.total,
            "block_size": self.kv.block_size if self.kv is not None else None,
            "attention": scalars,
            "missing": missing,
        }
        return {"about": about, "tensors": tensors}

    def _attention(self, rows: Rows, tensors: Dict[str, torch.Tensor]) -> Dict[str, Dict[str, Any]]:
        """Scalars of the attention metadata by cache group; slots and block tables go to `tensors`."""
        try:
            from vllm.forward_context import get_forward_context

            context = get_forward_context()
        except (ImportError, AssertionError):
            return {}
        scalars: Dict[str, Dict[str, Any]] = {}
        config = getattr(self.steps.runner, "kv_cache_config", None)
        order = [item.request for item in self.steps.rows]
        for group, entry in enumerate(config.kv_cache_groups if config is not None else ()):
            layer = entry.layer_names[0] if entry.layer_names else ""
            metadata = context.attn_metadata.get(layer) if isinstance(context.attn_metadata, dict) else None
            slots = context.slot_mapping.get(layer) if isinstance(context.slot_mapping, dict) else None
            slots = getattr(metadata, "slot_mapping", None) if slots is None else slots
            if isinstance(slots, torch.Tensor) and len(slots) >= rows.start + rows.count:
                part = slots[rows.start : rows.start + rows.count]
                tensors["slot_mapping.%d" % group] = part.detach().to("cpu", copy=True)
            if group < len(rows.request.tables):
                tensors["block_table.%d" % group] = torch.tensor(rows.request.tables[group], dtype=torch.long)
            fields = dataclasses.fields(metadata) if dataclasses.is_dataclass(metadata) else ()
            scalars[str(group)] = {
                field.name: getattr(metadata, field.name)
                for field in fields
                if isinstance(getattr(metadata, field.name), (bool, int, float, str))
            }
            scalars[str(group)]["requests_in_call"] = len(order)
        return scalars

    def write(self, request_id: str, tokens: List[int], rank: int, logits: Optional[torch.Tensor]) -> List[str]:
        """Write what was taken for a request whose prompt and output are `tokens`; `logits` float32 (steps, vocab).

        Returns the JSON files. Ranks after the first write only their tensors.
        """
        written = []
        for item in self._taken.pop(request_id, []):
            about, tensors = item["about"], item["tensors"]
            folder = self.wanted[request_id]["folder"]
            os.makedirs(folder, exist_ok=True)
            base = os.path.join(folder, "%s-call%d" % (request_id, about["call"]))
            end = about["first_position"] + about["tokens"]
            row = end - about["prompt_length"]
            if logits is not None and 0 <= row < len(logits):
                tensors["logits"] = logits[row : row + 1].clone()
            path = base + (".safetensors" if rank == 0 else ".rank%d.safetensors" % rank)
            _save(tensors, path)
            if rank:
                continue
            about = dict(
                about, schema_version=FORMAT, request_id=request_id, engine="vllm", tensors=os.path.basename(path),
                token_ids=tokens[about["first_position"] : end], prefix_token_ids=tokens[: about["first_position"]],
                row=row if row >= 0 else None,
            )  # fmt: skip
            with open(base + ".json", "w", encoding="utf-8") as file:
                json.dump(about, file, indent=2)
            written.append(base + ".json")
        return written


def _save(tensors: Dict[str, torch.Tensor], path: str) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
