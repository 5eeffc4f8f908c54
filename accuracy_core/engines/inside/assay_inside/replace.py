"""Reference rows put in place of what the engine computed at a tap, by position. Needs eager execution."""

from typing import Any, Dict, List, Optional

import torch

from assay_inside.steps import Steps
from assay_inside.taps import visit


class Replacements:
    """`wanted`: request id -> replacements, each {tap, file, tensor, first_row, columns}.

    Values that are not finite are not put: what was computed stays. Made after the taps: a tap at the same place then
    records what the engine computed, and the replacement flows on.
    Raises ValueError for a tap, file or shape that cannot be.
    """

    def __init__(self, steps: Steps, wanted: Dict[str, List[Dict[str, Any]]]) -> None:
        self.steps = steps
        #: (request id, tap) -> rows that were put in place
        self.done: Dict[Any, int] = {}
        self.problems: Dict[str, str] = {}
        self._handles: List[Any] = []
        try:
            for request_id, replacements in wanted.items():
                for replacement in replacements:
                    self._handles.append(
                        visit(steps.modules, replacement["tap"], self._putter(request_id, replacement))
                    )
        except Exception:
            self.remove()
            raise

    def _putter(self, request_id: str, wanted: Dict[str, Any]) -> Any:
        rows = read_tensor(wanted["file"], wanted["tensor"])
        first_row, tap, columns = int(wanted.get("first_row") or 0), wanted["tap"], wanted.get("columns")
        key = (request_id, tap)
        self.done.setdefault(key, 0)

        def put(value: torch.Tensor) -> Optional[torch.Tensor]:
            try:
                return changed(value)
            except Exception as error:  # must not end the engine
                self.problems[request_id] = "replacement at %s: %s: %s" % (tap, type(error).__name__, error)
                return None

        def changed(value: torch.Tensor) -> Optional[torch.Tensor]:
            for place in self.steps.rows:
                if place.request.request_id != request_id or value.shape[0] < self.steps.total:
                    continue
                begin = max(place.first, first_row)
                end = min(place.first + place.count, first_row + len(rows))
                if begin >= end:
                    continue
                width = value[0].numel()
                left, right = columns or (0, width)
                if not 0 <= left < right <= width or right - left != rows.shape[1]:
                    self.problems[request_id] = "replacement at %s: %d features for columns %d to %d of %d" % (
                        tap, rows.shape[1], left, right, width,
                    )  # fmt: skip
                    return None
                new = value.clone(memory_format=torch.contiguous_format)
                target = new.view(new.shape[0], -1)[place.start + begin - place.first : place.start + end - place.first]
                given, there = rows[begin - first_row : end - first_row].to(new), target[:, left:right]
                there.copy_(torch.where(torch.isfinite(given), given, there))
                self.done[key] += end - begin
                return new
            return None

        return put

    def problem(self, request_id: str) -> str:
        """Why the replacements of a request did not take place; empty when they did."""
        if request_id in self.problems:
            return self.problems[request_id]
        idle = [tap for (name, tap), count in self.done.items() if name == request_id and not count]
        return "replacement at %s never took place: no row of it was computed there" % ", ".join(idle) if idle else ""

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def read_tensor(path: str, name: str) -> torch.Tensor:
    """Tensor `name` of a safetensors file, at least 2-D. Raises ValueError."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensor = file.get_tensor(name)
    except Exception as error:  # the library has its own error types
        raise ValueError("replacement tensor %s of %s cannot be read: %s" % (name, path, error)) from None
    if tensor.dim() != 2:
        raise ValueError("replacement tensor %s has shape %s, not (rows, features)" % (name, list(tensor.shape)))
    return tensor
