"""Rows of modules' inputs and outputs, taken through forward hooks. Needs eager execution.

A tap is `MODULE:POINT`; POINT is `out0`, `out1`, … (forward's output or an item of the tuple it returns), `in0`, …
(argument of forward, keywords in the order of its signature), or `query`, `key`, `value`, `attn` of an attention layer:
what the attention kernel is given and what it returns.
"""

import inspect
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from assay_inside.steps import Steps

_TAP = re.compile(r"^(?P<module>[A-Za-z0-9_.]*):(?P<point>out\d+|in\d+|query|key|value|attn)$")
_ATTENTION_POINTS = {"query": ("in", 0), "key": ("in", 1), "value": ("in", 2), "attn": ("out", 0)}
#: called with the tensor at a tap; what it returns, unless None, flows on instead
Visit = Callable[[torch.Tensor], Optional[torch.Tensor]]


class NoSuchTap(ValueError):
    """The model has no such module, or the module no such place."""


def names(model: Any) -> List[Tuple[str, str]]:
    """(dotted name, class name) of every module; one that several places share is listed at each."""
    return [(name, type(module).__name__) for name, module in model.named_modules(remove_duplicate=False) if name]


def place(modules: Dict[str, Any], tap: str) -> Tuple[Any, str, int]:
    """(module, "in" or "out", index) of `tap`; `modules`: name -> module. Raises NoSuchTap."""
    match = _TAP.match(tap)
    if match is None:
        raise NoSuchTap("%r is no tap: write MODULE:out0, MODULE:in0, MODULE:query, …" % tap)
    if match["module"] not in modules:
        raise NoSuchTap("the model has no module %s" % match["module"])
    module, point = modules[match["module"]], match["point"]
    if point in _ATTENTION_POINTS:
        side, index = _ATTENTION_POINTS[point]
        attention = _attention_layer(module, match["module"])
        if index and "MLA" in type(attention).__name__:
            raise NoSuchTap("multi-head latent attention is given a compressed latent, no %s" % point)
        return attention, side, index
    digits = point.lstrip("inout")
    return module, point[: -len(digits)], int(digits)


def _attention_layer(module: Any, name: str) -> Any:
    """`module` or the only attention layer below it."""
    found = [child for child in module.modules() if hasattr(child, "impl") and hasattr(child, "kv_cache")]
    if len(found) != 1:
        raise NoSuchTap("%s has %d attention layers, not one" % (name, len(found)))
    return found[0]


def visit(modules: Dict[str, Any], tap: str, visitor: Visit) -> Any:
    """Hook `visitor` to `tap`; `modules`: name -> module. Returns the handle. Raises NoSuchTap."""
    module, side, index = place(modules, tap)

    def after(_module: Any, _args: Any, output: Any) -> Any:
        items = output if isinstance(output, (tuple, list)) else (output,)
        if index >= len(items) or not isinstance(items[index], torch.Tensor):
            return None
        new = visitor(items[index])
        if new is None:
            return None
        if not isinstance(output, (tuple, list)):
            return new
        return type(output)([*items[:index], new, *items[index + 1 :]])

    def before(_module: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        if index < len(args):
            value, name = args[index], None
        else:
            parameters = list(inspect.signature(module.forward).parameters)
            name = parameters[index] if index < len(parameters) else None
            value = kwargs.get(name)
        if not isinstance(value, torch.Tensor):
            return None
        new = visitor(value)
        if new is None:
            return None
        if name is None:
            return (*args[:index], new, *args[index + 1 :]), kwargs
        return args, dict(kwargs, **{name: new})

    if side == "out":
        return module.register_forward_hook(after)
    return module.register_forward_pre_hook(before, with_kwargs=True)


class Taps:
    """Records taps for the requests that asked for them; `wanted`: request id -> taps."""

    def __init__(self, steps: Steps, wanted: Dict[str, List[str]]) -> None:
        self.steps = steps
        self.problems: Dict[str, str] = {}
        self._parts: Dict[Tuple[str, str], List[Tuple[int, torch.Tensor]]] = {}
        self._last_call: Dict[str, int] = {}
        self._handles: List[Any] = []
        for tap in sorted({tap for taps in wanted.values() for tap in taps}):
            users = {name for name, taps in wanted.items() if tap in taps}
            try:
                self._handles.append(visit(steps.modules, tap, self._recorder(tap, users)))
            except NoSuchTap as error:
                self.problems[tap] = str(error)

    def _recorder(self, tap: str, users: Any) -> Visit:
        def record(value: torch.Tensor) -> None:
            try:
                look(value)
            except Exception as error:  # must not end the engine
                self.problems[tap] = "%s: %s" % (type(error).__name__, error)

        def look(value: torch.Tensor) -> None:
            steps = self.steps
            if not steps.rows:
                return
            if self._last_call.get(tap) == steps.call:
                self.problems[tap] = "called more than once in one engine call: several places share this module"
                return
            self._last_call[tap] = steps.call
            if not value.dim() or value.shape[0] < steps.total:
                self.problems[tap] = "has %d rows where the call runs %d tokens" % (
                    value.shape[0] if value.dim() else 0,
                    steps.total,
                )
                return
            for rows in steps.rows:
                if rows.request.request_id in users:
                    # copied here and now: vLLM's kernels go on to write into these buffers
                    part = value[rows.start : rows.start + rows.count].detach().to("cpu", copy=True)
                    key = (rows.request.request_id, tap)
                    self._parts.setdefault(key, []).append((rows.first, part.flatten(1) if part.dim() > 1 else part))

        return record

    def take(self, request_id: str, taps: List[str], positions: int) -> Tuple[Dict[str, torch.Tensor], Dict[str, str]]:
        """(tensors, missing) of a request. Tensors (positions, features) in the engine's dtype; NaN, or -1 in a tensor
        of integers, where a position was never computed. What a request recorded twice holds the last value."""
        tensors: Dict[str, torch.Tensor] = {}
        missing: Dict[str, str] = {}
        for tap in taps:
            parts = self._parts.pop((request_id, tap), [])
            if tap in self.problems or not parts:
                missing[tap] = self.problems.get(tap) or self.steps.problem or (
                    "never called with a tensor there while this request ran"
                )  # fmt: skip
                continue
            seen = torch.zeros(positions, dtype=torch.bool)
            first = parts[0][1]
            blank = float("nan") if first.is_floating_point() else -1
            table = torch.full((positions, *first.shape[1:]), blank, dtype=first.dtype)
            for start, part in parts:
                part = part[: max(0, positions - start)]
                table[start : start + len(part)] = part
                seen[start : start + len(part)] = True
            tensors[tap] = table
            if not bool(seen.all()):
                missing[tap] = "not computed at positions %s" % ranges(seen)
        return tensors, missing

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def ranges(seen: torch.Tensor) -> str:
    """Where `seen` bool (positions,) is False: `0-31, 40`."""
    gaps: List[List[int]] = []
    for position in (~seen).nonzero().flatten().tolist():
        if gaps and gaps[-1][1] == position - 1:
            gaps[-1][1] = position
        else:
            gaps.append([position, position])
    return ", ".join("%d" % first if first == last else "%d-%d" % (first, last) for first, last in gaps)
