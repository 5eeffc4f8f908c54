"""The typed files of a run directory, each read once and only when a section asks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.evidence import CONSISTENCY, LOGITS, Evidence, read_evidence
from accuracy_core.prompts.preflight.report import PreflightReport
from accuracy_core.prompts.prepared import PreparedPrompts
from accuracy_core.prompts.triage import Location, Triage, triage
from accuracy_core.schemas import (
    ConsistencyResult,
    Finding,
    ModuleValidationResult,
    PluginStatus,
    PromptAnalysisStatus,
    PromptResult,
    ResultsSummary,
    RunDir,
    StageRecord,
    TaskStatus,
    TensorCompareResult,
    Tolerances,
)
from accuracy_core.schemas.base import Schema
from accuracy_core.schemas.finding import CALIBRATION

__all__ = ["LOGITS", "EvidenceDir", "RunEvidence", "evidence", "taken_branch", "with_evidence"]


class RunEvidence:
    """What a run left on disk. A missing file is None or empty; a damaged one raises ConfigurationError on use."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir

    @cached_property
    def preflight(self) -> PreflightReport | None:
        return self._maybe(self.run_dir.preflight_json, PreflightReport)

    @cached_property
    def task(self) -> TaskStatus | None:
        return self._maybe(self.run_dir.task_analysis / "task_status.json", TaskStatus)

    @cached_property
    def samples(self) -> ResultsSummary | None:
        return self._maybe(self.run_dir.task_analysis / "results_summary.json", ResultsSummary)

    @cached_property
    def analysis(self) -> PromptAnalysisStatus | None:
        return self._maybe(self.run_dir.prompt_analysis_json, PromptAnalysisStatus)

    @cached_property
    def modules(self) -> ModuleValidationResult | None:
        return self._maybe(self.run_dir.module_validation_json, ModuleValidationResult)

    @cached_property
    def consistency(self) -> ConsistencyResult | None:
        """The engine against itself; None unless this analysis checked it: an earlier one's file says nothing."""
        if self.plugin(CONSISTENCY) is None:
            return None
        return self._maybe(self.run_dir.consistency_json, ConsistencyResult)

    @cached_property
    def prompts(self) -> PreparedPrompts:
        """Prompts of the directory, in numeric order."""
        found = self._maybe(self.run_dir.prompt_analysis / "prompts.json", PreparedPrompts) or PreparedPrompts()
        return found.model_copy(update={"prompts": sorted(found.prompts, key=lambda prompt: prompt.index)})

    @cached_property
    def logits(self) -> dict[int, PromptResult]:
        """Logit validation per prompt index; prompts without a result are absent."""
        found = {}
        for prompt in self.prompts.prompts:
            result = self._maybe(self.run_dir.prompt_result(prompt.index, LOGITS), PromptResult)
            if result is not None:
                found[prompt.index] = result
        return found

    @cached_property
    def tensors(self) -> dict[int, TensorCompareResult]:
        """Tensor compare per prompt index; prompts without a result are absent."""
        return self.witnesses.tensors

    @cached_property
    def witnesses(self) -> Evidence:
        """What every plugin of the analysis found, per prompt."""
        if self.analysis is None:
            return Evidence()
        escalation = self.analysis.escalation
        return read_evidence(
            self.run_dir,
            [prompt.index for prompt in self.prompts.prompts],
            self.analysis.plugins,
            escalation.not_measured if escalation is not None else {},
        )

    @cached_property
    def tolerances(self) -> Tolerances | None:
        """Tolerances that logit validation used."""
        return self._maybe(self.run_dir.prompt_analysis / "tolerances.json", Tolerances)

    @cached_property
    def calibration(self) -> list[Finding]:
        """What must be said about the calibration: found when the run was checked, or by the host of the device."""
        given = [Finding.model_validate(item) for item in self.config.get("findings", [])]
        there = self.analysis.findings if self.analysis is not None else []
        return list({item.evidence: item for item in (*given, *there) if item.check == CALIBRATION}.values())

    @cached_property
    def stages(self) -> list[StageRecord]:
        """Stage records in the order in which they started."""
        if not self.run_dir.stages.exists():
            return []
        paths: list[Any] = list(self.run_dir.stages.glob("*.json"))
        return sorted((self.run_dir.read(path, StageRecord) for path in paths), key=lambda record: record.started)

    @cached_property
    def config(self) -> dict[str, Any]:
        """`run_config.json` as it is: it also tells about versions this code does not know."""
        path = self.run_dir.run_config
        if not path.exists():
            return {}
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigurationError(f"{path} is not JSON: {error}", fix="rerun the stage that writes it") from error
        return loaded if isinstance(loaded, dict) else {}

    def plugin(self, name: str) -> PluginStatus | None:
        return self.analysis.plugins.get(name) if self.analysis is not None else None

    def parameters(self) -> dict[str, Any]:
        """Parameters of the run ({} when the run directory has none)."""
        found = self.config.get("parameters", self.config)
        return found if isinstance(found, dict) else {}

    def engine(self) -> dict[str, Any]:
        found = self.parameters().get("engine")
        return found if isinstance(found, dict) else {}

    def log_tail(self, stage: str, lines: int = 30) -> str:
        """End of the log that belongs to a stage ('' without one)."""
        logs = {"evaluate": self.run_dir.server_log, "module_validation": self.run_dir.modules_log}
        path = logs.get("evaluate" if stage == "stop_server" else stage, self.run_dir.engine_log)
        if not path.exists():
            return ""
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _maybe(self, path: Any, kind: type[Any]) -> Any:
        assert issubclass(kind, Schema)
        return self.run_dir.read(path, kind) if path.exists() else None


@dataclass(frozen=True)
class EvidenceDir(RunDir):
    """A run directory whose files are already being read: sections share them."""

    shared: RunEvidence | None = None


def evidence(run_dir: RunDir) -> RunEvidence:
    """The evidence of `run_dir`: shared during one build, read anew for a plain RunDir."""
    if isinstance(run_dir, EvidenceDir) and run_dir.shared is not None:
        return run_dir.shared
    return RunEvidence(run_dir)


def taken_branch(found: RunEvidence) -> Triage:
    """Branch of the triage tree that this run took, with the phase that its analysis recorded."""
    location = Location(found.analysis.phase) if found.analysis is not None else None
    return triage(list(found.logits.values()), found.plugin(LOGITS), location=location, evidence=found.witnesses)


def with_evidence(run_dir: RunDir) -> EvidenceDir:
    """A run directory for one build of the report."""
    return EvidenceDir(run_dir.root, RunEvidence(run_dir))
