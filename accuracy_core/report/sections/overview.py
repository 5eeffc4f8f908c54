"""Sections of the overview tab."""

from __future__ import annotations

import json
import math
from typing import ClassVar

from accuracy_core.prompts.triage import phase_text
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.report.document import prompt_summaries
from accuracy_core.report.evidence import evidence, taken_branch
from accuracy_core.report.rendering import render
from accuracy_core.report.sparkline import sparkline
from accuracy_core.schemas import ReportSection, RunDir, Tab


class PromptCardsSection(ReportSection):
    """One card per prompt with the verdict of every plugin."""

    name: ClassVar[str] = "prompt_cards"
    title: ClassVar[str] = "Prompts"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return bool(evidence(run_dir).prompts.prompts)

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        limits = found.tolerances.guards.l2_ratio if found.tolerances is not None else None
        texts = {prompt.index: prompt.text for prompt in found.prompts.prompts}
        sparks = {index: sparkline(result.rows, limits) for index, result in found.logits.items()}
        return render(
            "overview_cards.html.j2",
            prompts=prompt_summaries(found),
            texts=texts,
            sparks=sparks,
            note=found.prompts.note,
            skipped=found.prompts.skipped,
            phase_text=phase_text,
        )


class CulpritSection(ReportSection):
    """Where the fault sits, and the experiment that proves it."""

    name: ClassVar[str] = "culprit"
    title: ClassVar[str] = "Culprit"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        analysis = evidence(run_dir).analysis
        return analysis is not None and analysis.culprit is not None

    def render(self, run_dir: RunDir) -> str:
        analysis = evidence(run_dir).analysis
        assert analysis is not None
        assert analysis.culprit is not None
        sizes = [size for trial in analysis.culprit.trials for size in (trial.l2_before, trial.l2_after)]
        return render(
            "overview_culprit.html.j2",
            culprit=analysis.culprit,
            escalation=analysis.escalation,
            top=max((size for size in sizes if math.isfinite(size)), default=1.0),
            share=_share,
            phase_text=phase_text,
        )


def _share(value: float, top: float) -> float:
    """Width of a bar in percent of the longest one, on a scale that keeps 1 visible beside 100; not finite is full."""
    if not math.isfinite(value):
        return 100.0
    return 100.0 * math.log1p(max(value, 0.0)) / math.log1p(max(top, 1e-9))


class TriageSection(ReportSection):
    """The triage trees with the branches of this run lit up."""

    name: ClassVar[str] = "triage"
    title: ClassVar[str] = "Triage"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return True

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        taken = taken_branch(found)
        return render(
            "overview_triage.html.j2",
            nodes=load_triage_tree().node,
            lit={node.id for node in taken.lit},
            measured=bool(taken.facts),
        )


class LegendSection(ReportSection):
    """How to read ratios, BC and verdicts."""

    name: ClassVar[str] = "legend"
    title: ClassVar[str] = "How to read this report"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return True

    def render(self, run_dir: RunDir) -> str:
        return render(
            "overview_legend.html.j2", tolerances=evidence(run_dir).tolerances, bounds=load_triage_tree().bounds
        )


class ProvenanceSection(ReportSection):
    """Which model, engine, versions, parameters and goldens the numbers come from."""

    name: ClassVar[str] = "provenance"
    title: ClassVar[str] = "Provenance"
    tab: ClassVar[Tab] = Tab.OVERVIEW

    def applies(self, run_dir: RunDir) -> bool:
        return True

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        stages = found.stages
        versions = {name: version for record in stages for name, version in record.versions.items()}
        longest = max((record.duration_s for record in stages), default=0.0)
        return render(
            "overview_provenance.html.j2",
            config=found.config,
            parameters=json.dumps(found.parameters(), indent=2, ensure_ascii=False)
            if found.parameters()
            else "none recorded",
            engine=found.engine(),
            target=found.analysis.engine if found.analysis is not None else {},
            versions=dict(sorted({**found.config.get("versions", {}), **versions}.items())),
            stages=stages,
            longest=longest or 1.0,
            goldens={index: result.golden_key for index, result in found.logits.items() if result.golden_key},
            tolerances=found.tolerances,
        )
