"""Where in a transformers model the canonical taps are."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from torch import nn

from accuracy_core.capture.hf_attention import uses_attention_interface
from accuracy_core.errors import ConfigurationError

Kind = Literal["output", "input", "query", "key", "value", "attn", "logits"]

KERNEL_POINTS = ("query", "key", "value", "attn")
#: names of the projection whose input is the attention kernel's output, for models without an attention interface
_OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True)
class Point:
    """A place to hook: a module and which of its tensors."""

    tap: str
    module: nn.Module
    kind: Kind


def find_points(model: nn.Module) -> dict[str, Point]:
    """Every canonical tap of the model: canonical name -> place, children before their parents.

    Left out: containers, the model itself, and leaves without weights (activations, dropout, rotary tables), whose
    tensors are either those of a neighbour or no rows per token.
    """
    modules = dict(model.named_modules())
    points: dict[str, Point] = {}
    for name in _post_order(model):
        module = modules[name]
        is_model = not name or hasattr(module, "get_input_embeddings")
        if is_model or isinstance(module, _CONTAINERS):
            continue
        is_leaf = next(module.children(), None) is None
        if is_leaf and next(module.parameters(recurse=False), None) is None:
            continue
        for point in _virtual(name, module, modules):
            points[point.tap] = point
        points[name] = Point(name, module, "output")
    head = _output_embeddings(model, modules)
    if head is not None:
        points.pop(head)
        points["lm_head"] = Point("lm_head", model, "logits")
    return points


def resolve_points(model: nn.Module, taps: list[str]) -> list[Point]:
    """The places of the given taps. Raises ConfigurationError, with near names, for those that the model lacks."""
    points = find_points(model)
    unknown = [tap for tap in taps if tap not in points]
    if unknown:
        near = difflib.get_close_matches(unknown[0], points, n=3, cutoff=0.4)
        raise ConfigurationError(
            f"{type(model).__name__} has no tap {', '.join(unknown[:3])}" + (" …" if len(unknown) > 3 else ""),
            fix=f"near names: {', '.join(near)}" if near else f"it has {len(points)} taps, see available_taps(model)",
        )
    return [points[tap] for tap in dict.fromkeys(taps)]


def _virtual(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> list[Point]:
    def child(item: str) -> nn.Module | None:
        return modules.get(f"{name}.{item}")

    found: list[Point] = []
    if uses_attention_interface(module):
        kinds: tuple[Kind, ...] = ("query", "key", "value", "attn")
        found += [Point(f"{name}.{kind}", module, kind) for kind in kinds]
    elif child("q_proj") is not None or child("qkv_proj") is not None:
        projection = next((item for item in map(child, _OUTPUT_PROJECTIONS) if item is not None), None)
        if projection is not None:
            found.append(Point(f"{name}.attn", projection, "input"))
    down = child("down_proj")
    if down is not None:
        found.append(Point(f"{name}.act", down, "input"))
    after_attention = _after_attention(child)
    if after_attention is not None:
        found.append(Point(f"{name}.residual_mid", after_attention, "input"))
    return found


def _after_attention(child: object) -> nn.Module | None:
    """The module of a decoder layer whose input is the residual stream between attention and MLP."""
    assert callable(child)
    if child("self_attn") is None or child("mlp") is None:
        return None
    before: nn.Module | None = child("pre_feedforward_layernorm")  # Gemma 2, Gemma 3
    if before is not None:
        return before
    if child("post_feedforward_layernorm") is not None:  # OLMo 2 normalises what attention and MLP return
        mlp: nn.Module | None = child("mlp")
        return mlp
    if child("input_layernorm") is None:
        return None
    norm: nn.Module | None = child("post_attention_layernorm")
    return norm


def _output_embeddings(model: nn.Module, modules: dict[str, nn.Module]) -> str | None:
    get = getattr(model, "get_output_embeddings", None)
    head = get() if callable(get) else None
    return next((name for name, module in modules.items() if module is head), None) if head is not None else None


def _post_order(model: nn.Module, prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, child in model.named_children():
        names += _post_order(child, f"{prefix}.{name}" if prefix else name)
    return [*names, prefix]
