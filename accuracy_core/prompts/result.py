"""What `run_prompt_analysis` returns."""

from __future__ import annotations

from pydantic import Field

from accuracy_core.errors import InfrastructureError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.prepared import PreparedPrompt
from accuracy_core.schemas import PluginStatus, PromptAnalysisStatus, Schema


class PromptAnalysisResult(Schema):
    """Everything about one call. `plugin_results` holds this call's plugins, `status` all of the output directory's."""

    prompts: list[PreparedPrompt]
    plugin_results: dict[str, PluginStatus] = Field(default_factory=dict)
    verdict: Verdict | None = None
    report_path: str = Field("", description="path of prompt_report.txt")
    status: PromptAnalysisStatus

    @property
    def passed(self) -> bool:
        """True when every plugin in the output directory measured a pass and none reported an error."""
        errors = any(plugin.errors for plugin in self.status.plugins.values())
        return self.verdict is Verdict.PASS and not errors and self.outcome is Outcome.NUMERICS

    @property
    def outcome(self) -> Outcome:
        return self.status.outcome

    def raise_if_broken(self) -> None:
        """Raise InfrastructureError when an engine or the storage died on the way: a retry may help."""
        if self.outcome is Outcome.INFRASTRUCTURE:
            texts = [text for plugin in self.status.plugins.values() for text in plugin.errors.values()]
            message = "; ".join(dict.fromkeys(texts)) or "prompt analysis did not finish"
            raise InfrastructureError(message, log_tail=self.status.log_tail)
