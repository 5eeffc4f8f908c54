"""Task analysis: scores against thresholds, samples, commands to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accuracy_core.report.evidence import evidence
from accuracy_core.report.rendering import render
from accuracy_core.report.reproduce import reproduce_commands
from accuracy_core.schemas import ReportSection, RunDir, SampleRecord, Tab, TaskStatus

#: samples shown per list: a page with ten thousand of them opens nowhere; the rest is in results_summary.json
SHOWN = 150
#: characters of a prompt or answer that are shown
SHOWN_CHARACTERS = 6000


@dataclass(frozen=True)
class Sample:
    """One document with the verdict of each filter."""

    task: str
    doc_id: int
    prompt: str
    target: str
    response: list[str]
    filters: list[SampleRecord]

    @property
    def truncated(self) -> bool:
        return any(record.truncated for record in self.filters)


class TaskAnalysisPlugin(ReportSection):
    """Metrics table, deviating samples open, matching samples folded, reproduce commands."""

    name: ClassVar[str] = "task_analysis"
    title: ClassVar[str] = "Task analysis"
    tab: ClassVar[Tab] = Tab.TASK

    def applies(self, run_dir: RunDir) -> bool:
        return evidence(run_dir).task is not None

    def render(self, run_dir: RunDir) -> str:
        found = evidence(run_dir)
        task = found.task
        assert task is not None
        samples = found.samples
        return render(
            "task.html.j2",
            task=task,
            rows=metric_rows(task),
            unresolved=[result for result in task.thresholds if result.key is None],
            deviating=by_document(samples.deviating) if samples else [],
            matching=by_document(samples.matching) if samples else [],
            samples=samples,
            shown=SHOWN,
            clip=SHOWN_CHARACTERS,
            commands=reproduce_commands(found),
        )


def metric_rows(task: TaskStatus) -> list[dict[str, object]]:
    """Scores with the thresholds and paired tests that belong to them."""
    paired = {test.key: test for test in task.paired}
    return [
        {
            "score": score,
            "thresholds": [result for result in task.thresholds if result.key == score.key],
            "paired": paired.get(score.key),
        }
        for score in task.scores
    ]


def by_document(records: list[SampleRecord]) -> list[Sample]:
    """Records of one document, one per filter, as one sample; the order of their first appearance is kept."""
    grouped: dict[tuple[str, int], list[SampleRecord]] = {}
    for record in records:
        grouped.setdefault((record.task, record.doc_id), []).append(record)
    return [
        Sample(task, doc_id, group[0].prompt, group[0].target, group[0].response, group)
        for (task, doc_id), group in grouped.items()
    ]
