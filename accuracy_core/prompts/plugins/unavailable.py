"""Documented plugins that this version does not have: a script that names them runs, and is told "not measured"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from accuracy_core.errors import NotMeasuredError
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.plugin import PromptPlugin


class UnavailablePlugin(PromptPlugin):
    """Measures nothing and says so. Not in the registry: asking for it by name is refused before anything starts."""

    needs_shared_llm = False

    def run(self, ctx: PluginContext) -> NoReturn:
        raise NotMeasuredError(f"{self.name} is not part of this version of Assay", fix="leave the plugin out")


class TensorComparePlugin(UnavailablePlugin):
    """Three-way comparison of module tensors; not available yet. Takes the documented arguments."""

    name = "tensor_compare"

    def __init__(
        self,
        modules: Sequence[str],
        tp_size: int = 1,
        max_l2_ratio: float = 3.0,
        reconstruction_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.modules = tuple(modules)
        self.tp_size = tp_size
        self.max_l2_ratio = max_l2_ratio
        self.reconstruction_fn = reconstruction_fn
