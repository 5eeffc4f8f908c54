"""What an engine that contradicts itself adds to the decision over a run."""

from __future__ import annotations

from typing import Any

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.evidence import CONSISTENCY
from accuracy_core.schemas import PromptAnalysisStatus


def consistency_decision(analysis: PromptAnalysisStatus, decided: Any) -> dict[str, Any]:
    """Fields of the Conclusion `decided` that change: headline and what to do, where nothing else is to blame.

    A named culprit keeps its own: logits that are wrong one request at a time are looked at first.
    """
    plugin = analysis.plugins.get(CONSISTENCY)
    if plugin is None or plugin.verdict is not Verdict.FAIL or plugin.worst is None or analysis.culprit is not None:
        return {}
    what = plugin.worst.detail
    notes = [note for note in decided.notes if note != what]
    others = [name for name, one in analysis.plugins.items() if one.verdict is Verdict.FAIL and name != CONSISTENCY]
    if others:  # serving another way would not help them
        wrong = ", ".join(name.replace("_", " ") for name in others)
        return {"headline": f"{decided.headline}: {wrong}, one request at a time; {what}", "notes": notes}
    fixes = [finding.fix for finding in analysis.findings if finding.evidence == what]
    return {"headline": f"{decided.headline}: {what}", "notes": notes, "fix": next(iter(fixes), "")}


def consistency_gaps(analysis: PromptAnalysisStatus) -> list[str]:
    """Ways of serving that were asked for and not measured, with the reason, once for those that share it."""
    plugin = analysis.plugins.get(CONSISTENCY)
    by_reason: dict[str, list[str]] = {}
    for name, reason in (plugin.not_measured if plugin is not None else {}).items():
        by_reason.setdefault(reason, []).append(name)
    return [f"consistency under {', '.join(names)} ({reason})" for reason, names in by_reason.items()]


def is_consistency_alone(analysis: PromptAnalysisStatus) -> bool:
    """Whether the engine was held against itself and against nothing else: one that is always wrong agrees, too."""
    return {name for name, plugin in analysis.plugins.items() if plugin.verdict is not None} == {CONSISTENCY}
