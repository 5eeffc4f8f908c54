"""`task_report.txt`: scores against thresholds, for reading."""

from __future__ import annotations

import math

from accuracy_core.schemas import PairedTest, ResultsSummary, ScoreRow, TaskStatus, ThresholdResult

_LISTED = 20


def task_report(status: TaskStatus, summary: ResultsSummary) -> str:
    """Plain text; never judged again from it, so it may change its wording."""
    word = {True: "PASSED", False: "FAILED", None: "NOT JUDGED"}[status.passed]
    lines = [f"Task analysis: {word}", f"model: {status.model or 'not recorded'}", ""]
    if status.thresholds:
        lines += ["Thresholds", *[_threshold(item) for item in status.thresholds], ""]
    lines += ["Scores", *[_score(row) for row in status.scores], ""]
    if status.paired:
        lines += ["Paired with the reference, document by document", *[_paired(item) for item in status.paired], ""]
    lines.append(
        f"Samples: {status.n_samples}, deviating: {summary.n_deviating}"
        + (f", wrong in the reference too: {status.n_model_errors}" if status.paired else "")
    )
    for sample in summary.deviating[:_LISTED]:
        metrics = ", ".join(f"{name}={value:g}" for name, value in sample.metrics.items())
        lines.append(f"  {sample.task} doc {sample.doc_id} [{sample.filter}] {metrics}")
    if len(summary.deviating) > _LISTED or summary.n_deviating > _LISTED:
        lines.append("  … all in results_summary.json and deviated_prompts.json")
    if status.warnings:
        lines += ["", "Warnings", *[f"  {text}" for text in status.warnings]]
    return "\n".join(lines) + "\n"


def _threshold(item: ThresholdResult) -> str:
    verdict = "pass" if item.passed else "FAIL"
    text = f"  {verdict}  {item.key or item.given_key}"
    if item.key:
        text += f": {item.value:.6g} against {item.rule.replace('_', ' ')} {item.bound:.6g}"
    if item.reason:
        text += f" ({item.reason})"
    if math.isfinite(item.smallest_detectable_drop):
        text += f"; at n={item.n} a drop under {item.smallest_detectable_drop:.3f} would go unnoticed unpaired"
    return text


def _score(row: ScoreRow) -> str:
    error = f" ± {row.stderr:.4f}" if math.isfinite(row.stderr) else ""
    note = "" if row.higher_is_better else " (lower is better)"
    return f"  {row.key}: {row.value:.6g}{error}{f' n={row.n}' if row.n is not None else ''}{note}"


def _paired(item: PairedTest) -> str:
    verdict = {
        True: f"non-inferior within {item.margin:g}",
        False: f"not shown to be non-inferior within {item.margin:g}",
    }
    return (
        f"  {item.key}: n={item.n}, worse {item.n_worse}, better {item.n_better}, difference {item.difference:+.4f} "
        f"[{item.ci_low:+.4f}, {item.ci_high:+.4f}], McNemar p={item.mcnemar_p:.4g}"
        + (f", {verdict[item.non_inferior]}" if item.non_inferior is not None else "")
    )
