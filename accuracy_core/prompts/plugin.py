"""Interface of a prompt plugin: one analysis of all prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.context import PluginContext
from accuracy_core.schemas import EngineSpec, Platform, PluginStatus


class PromptPlugin(ABC):
    """One analysis step.

    The orchestrator calls `pre_llm` before any engine is loaded, `run` with the shared engine and the goldens in the
    context, then `save`. With `needs_shared_llm = False` it makes neither engine nor goldens for the plugin, and runs
    it after the shared engine is closed; unless the plugin says `can_share_llm` and the target's engine captures
    tensors without another compilation: then the plugin gets the shared one.
    """

    name: ClassVar[str]
    needs_shared_llm: bool = True
    can_share_llm: bool = False

    def shares(self, spec: EngineSpec) -> bool:
        """Whether this plugin is given the shared engine for a target like `spec`."""
        return self.needs_shared_llm or (self.can_share_llm and spec.platform is not Platform.NEURON)

    def pre_llm(self, ctx: PluginContext) -> None:  # noqa: B027 - optional step, not abstract
        """Work that must be done before an engine holds memory or device. Optional."""

    @abstractmethod
    def run(self, ctx: PluginContext) -> dict[str, Any]:
        """Analyse all prompts. The dictionary has `passed` (True, False, or None: not measured) at least.

        A prompt that fails by itself is recorded, the others go on; EngineDiedError is let through.
        """

    def save(self, ctx: PluginContext, results: dict[str, Any]) -> None:  # noqa: B027 - optional step
        """Write the results below `ctx.output_dir`. Optional."""

    def status(self, results: dict[str, Any]) -> PluginStatus:
        """Summary for `analysis.json`: `results["status"]` if the plugin made one, else derived from `passed`."""
        made = results.get("status")
        if isinstance(made, PluginStatus):
            return made
        passed = results.get("passed")
        if passed is None:
            return PluginStatus(plugin=self.name, outcome=Outcome.NOT_MEASURED)
        return PluginStatus(plugin=self.name, verdict=Verdict.PASS if passed else Verdict.FAIL)
