"""Plain-text summaries for people without a browser. Nothing reads them back."""

from __future__ import annotations

import math

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.prepared import PreparedPrompts
from accuracy_core.prompts.triage import phase_text, row_is_bad
from accuracy_core.schemas import (
    Culprit,
    Escalation,
    GuardHit,
    PromptAnalysisStatus,
    PromptResult,
    RouteResult,
    RowMetrics,
)


def prompt_report(status: PromptAnalysisStatus, manifest: PreparedPrompts) -> str:
    """`prompt_report.txt`: verdict, plugins, one line per prompt, culprit."""
    lines = [
        "Prompt analysis",
        f"  outcome   {status.outcome.value}",
        f"  verdict   {_verdict(status.verdict)}",
        f"  prompts   {status.n_prompts}{' (curated)' if status.curated else ''}",
    ]
    for name, plugin in sorted(status.plugins.items()):
        lines += ["", f"{name}: {_verdict(plugin.verdict)}"]
        lines += [f"  {_route(route)}" for route in plugin.routes]
        if plugin.worst is not None:
            lines.append(f"  worst guard: {_guard(plugin.worst)}")
        lines += [f"  {key} = {value:.6g}" for key, value in sorted(plugin.aggregates.items())]
        for prompt in manifest.prompts:
            key = str(prompt.index)
            if key in plugin.errors:
                lines.append(f"  prompt {key:>3}  error: {plugin.errors[key]}")
            elif key in plugin.per_prompt:
                lines.append(f"  prompt {key:>3}  {_verdict(plugin.per_prompt[key])}  {prompt.label}".rstrip())
        lines += [f"  not measured: {part}: {why}" for part, why in plugin.not_measured.items()]
        if "plugin" in plugin.errors:
            lines.append(f"  error: {plugin.errors['plugin']}")
    if status.escalation is not None:
        lines += ["", _escalation(status.escalation)]
    if status.culprit is not None:
        lines += ["", *_culprit(status.culprit)]
    for finding in status.findings:
        lines.append(f"{finding.severity.value}: {finding.evidence}")
    return "\n".join(lines) + "\n"


def _escalation(escalation: Escalation) -> str:
    chosen = ", ".join(str(index) for index in escalation.prompts)
    return (
        f"Triage: {', '.join(escalation.plugins) or 'nothing'} on prompts {chosen} "
        f"(the worst of {escalation.failing} that did not pass), {escalation.duration_s:.1f} s"
    )


def _culprit(culprit: Culprit) -> list[str]:
    where = [
        f"{name} {value}"
        for name in ("module", "layer", "head", "position")
        if (value := getattr(culprit, name)) is not None
    ]
    lines = [", ".join([f"Culprit: phase {phase_text(culprit.phase)}", *where]), f"  branch {culprit.branch}"]
    if culprit.confirmation:
        word = {True: "confirmed", False: "not confirmed", None: "no proof"}[culprit.confirmed]
        lines.append(f"  {word}: {culprit.confirmation}")
    lines += [f"  contradiction: {text}" for text in culprit.contradictions]
    lines += [f"  {text}" for text in culprit.evidence]
    lines += [f"  suspect {rank}: {text}" for rank, text in enumerate(culprit.suspects, 1)]
    if culprit.next_step:
        lines.append(f"  next: {culprit.next_step}")
    if culprit.next_command:
        lines.append(f"    {culprit.next_command}")
    return lines


def validation_log(result: PromptResult) -> str:
    """`validation_log.txt`: every number of one prompt's rows."""
    lines = [
        f"prompt {result.index}: {len(result.prompt_token_ids)} prompt tokens, {len(result.rows)} rows",
        f"verdict {_verdict(result.verdict)}, phase {phase_text(result.phase)}, first bad: {result.first_bad_token}",
        f"engine route {result.engine_route}, golden {result.golden_key}",
    ]
    if result.error:
        lines.append(f"error: {result.error}")
    lines += [_route(route) for route in result.routes]
    lines += [f"guard {_guard(hit)}" for hit in result.guards]
    lines += ["", "bad token  ref  exp  tgt   linf ratio   l2 ratio         BC         KL  errors per k"]
    passed = result.verdict is Verdict.PASS
    lines += [_row(row, bad=row.bad if passed else row_is_bad(row)) for row in result.rows]
    return "\n".join(lines) + "\n"


def _verdict(verdict: Verdict | None) -> str:
    return "not measured" if verdict is None else verdict.value.upper()


def _route(route: RouteResult) -> str:
    word = "not measured" if route.passed is None else "passes" if route.passed else "fails"
    return f"route {route.route}: {word}, {route.value:.6g} against {route.threshold:.6g} {route.detail}".rstrip()


def _guard(hit: GuardHit) -> str:
    where = f"prompt {hit.prompt}, batch {hit.batch}, token {hit.token}"
    return f"{hit.guard} ({where}): {hit.value:.6g}, limit {hit.limit:.6g} {hit.detail}".rstrip()


def _row(row: RowMetrics, *, bad: bool) -> str:
    mark = "*" if bad else " "
    ks = " ".join(f"{key}:{value:.4g}" for key, value in row.topk_error.items())
    numbers = " ".join(
        f"{value:>10.4g}" if not math.isnan(value) else f"{'-':>10}"
        for value in (row.linf_ratio, row.l2_ratio, row.bc, row.kl)
    )
    ids = f"{row.reference_id:>4} {row.expected_id:>4} {row.target_id:>4}"
    return f"  {mark} {row.token:>5} {ids} {numbers}  {ks}"
