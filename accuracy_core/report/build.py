"""`generate_report`: one self-contained page and its twin for machines."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from markupsafe import Markup

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.conclusion import Conclusion
from accuracy_core.prompts.kv_page import kv_script, kv_style
from accuracy_core.prompts.triage import phase_text
from accuracy_core.report.concluding import conclude_from_files
from accuracy_core.report.document import ReportDocument, StageSummary, prompt_summaries
from accuracy_core.report.evidence import EvidenceDir, RunEvidence, taken_branch, with_evidence
from accuracy_core.report.inline import content_policy, inline
from accuracy_core.report.junit import write_junit
from accuracy_core.report.registry import REPORT_SECTIONS
from accuracy_core.report.rendering import TEMPLATES, render, without_surrogates
from accuracy_core.schemas import FaultSpec, ReportSection, RunDir, Tab, write_text

log = logging.getLogger(__name__)

#: in the order in which they run; what draws registers itself with charts.js
SCRIPTS = ("charts.js", "tensors.js", "app.js")


@dataclass(frozen=True)
class RenderedSection:
    """HTML of one section; `prompts` holds its part of every prompt."""

    name: str
    title: str
    tab: str
    html: Markup
    prompts: dict[int, Markup]


def generate_report(output_dir: str | os.PathLike[str] | RunDir, *, conclusion: Conclusion | None = None) -> str:
    """Write `combined_report.html`, `report.json` and `junit.xml` into a run directory. Returns the page's path.

    `conclusion` is what the run decided; without it the decision is made again from the files. A section that fails
    shows its error and is named in `report.json`; the others are not touched. Raises ConfigurationError when the
    directory does not exist.
    """
    import accuracy_core.report.sections.builtin  # noqa: F401 - registers the built-in sections

    run_dir = RunDir.at(output_dir)
    if not run_dir.root.exists():
        raise ConfigurationError(
            f"run directory {run_dir.root} does not exist", fix="give the --output directory of a run"
        )
    shared = with_evidence(run_dir)
    found = shared.shared
    assert found is not None
    decided = conclusion or conclude_from_files(found)
    errors: dict[str, str] = {}
    sections = [
        _rendered(section, shared, found, errors)
        for section in REPORT_SECTIONS.values()
        if _wanted(section, shared, errors)
    ]
    document = _document(found, decided, errors)
    _try(lambda: write_junit(run_dir, document), None, errors, "junit.xml")
    page = render(
        "page.html.j2",
        document=document,
        conclusion=decided,
        sections=sections,
        prompts=_try(lambda: found.prompts.prompts, [], errors, "prompts"),
        summaries={summary.index: summary for summary in document.prompts},
        task=_try(lambda: found.task, None, errors, "task status"),
        analysis=_try(lambda: found.analysis, None, errors, "analysis"),
        calibration=_try(lambda: found.calibration, [], errors, "run_config.json"),
        junit=(run_dir.root / "junit.xml").exists(),
        phase_text=phase_text,
        history=any(section.tab == Tab.HISTORY for section in sections),
        **_assets(),
    )
    write_text(run_dir.report_html, without_surrogates(page))
    run_dir.write(run_dir.report_json, document)
    return str(run_dir.report_html)


def _wanted(section: ReportSection, run_dir: EvidenceDir, errors: dict[str, str]) -> bool:
    # a section that cannot even say whether it applies is shown with its error, not dropped
    return bool(_try(lambda: section.applies(run_dir), True, errors, section.name))


def _rendered(
    section: ReportSection, run_dir: EvidenceDir, found: RunEvidence, errors: dict[str, str]
) -> RenderedSection:
    def guarded(make: Callable[[], str]) -> Markup:
        failed: dict[str, str] = {}
        text = _try(make, "", failed, section.name)
        errors.update(failed)
        problem = failed.get(section.name)
        # sections return HTML that they escaped themselves
        return Markup(text) if problem is None else Markup(_error_box(section.title, problem))

    body = guarded(lambda: section.render(run_dir))
    prompts: dict[int, Markup] = {}
    if section.tab == Tab.PROMPT:
        for prompt in _try(lambda: found.prompts.prompts, [], errors, "prompts"):
            prompts[prompt.index] = guarded(partial(section.render_prompt, run_dir, prompt.index))
    return RenderedSection(section.name, section.title, section.tab.value, body, prompts)


def _error_box(title: str, problem: str) -> str:
    return (
        f'<div class="section-error" role="alert"><strong>{html.escape(title)} could not be shown.</strong>'
        f"<pre>{html.escape(problem)}</pre></div>"
    )


def _try(make: Callable[[], Any], otherwise: Any, errors: dict[str, str], name: str) -> Any:
    """`make()`, or `otherwise` with the error noted: one damaged file must not cost the rest of the page."""
    try:
        return make()
    except Exception as error:
        log.warning("report: %s failed: %s: %s", name, type(error).__name__, error)
        errors[name] = f"{type(error).__name__}: {error}"
        return otherwise


def _document(found: RunEvidence, decided: Conclusion, errors: dict[str, str]) -> ReportDocument:
    config = _try(lambda: found.config, {}, errors, "run_config.json")
    task = _try(lambda: found.task, None, errors, "task status")
    analysis = _try(lambda: found.analysis, None, errors, "analysis")
    stages = _try(lambda: found.stages, [], errors, "stages")
    engine = _try(found.engine, {}, errors, "run_config.json")
    fault = engine.get("fault")
    return ReportDocument(
        generated=datetime.now(UTC),
        model=str(config.get("model_name") or engine.get("model") or (task.model if task else "")),
        model_fingerprint=str(config.get("model_fingerprint", "")),
        outcome=decided.outcome,
        verdict=decided.verdict,
        banner=decided.banner,
        headline=decided.headline,
        exit_code=decided.exit_code,
        fault=_try(lambda: FaultSpec.model_validate(fault), None, errors, "fault") if fault else None,
        culprit=decided.culprit,
        preflight=_try(lambda: found.preflight, None, errors, "preflight"),
        scores=task.scores if task else [],
        thresholds=task.thresholds if task else [],
        paired=task.paired if task else [],
        plugins=analysis.plugins if analysis else {},
        prompts=_try(lambda: prompt_summaries(found), [], errors, "prompts"),
        modules=_try(lambda: found.modules.checks if found.modules else [], [], errors, "module validation"),
        triage=_try(
            lambda: [node.id for node in taken_branch(found).lit],
            [],
            errors,
            "triage",
        ),
        escalation=analysis.escalation if analysis else None,
        stages=[
            StageSummary(stage=record.stage, status=record.status, duration_s=record.duration_s, message=record.message)
            for record in stages
        ],
        versions={**config.get("versions", {}), **{k: v for record in stages for k, v in record.versions.items()}},
        engine=analysis.engine if analysis else {},
        parameters=_try(found.parameters, {}, errors, "run_config.json"),
        section_errors=errors,
        conclusion=decided,
    )


@cache
def _assets() -> dict[str, Any]:
    """Style, scripts and the content security policy that allows exactly these scripts and no network."""
    from plotly.offline import get_plotlyjs

    plotly = inline(get_plotlyjs())
    scripts = [(TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = inline("\n".join([*scripts, kv_script()]))
    policy = content_policy(script, plotly)
    style = inline((TEMPLATES / "report.css").read_text(encoding="utf-8") + kv_style())
    # our own files, not input: they are inserted as they are
    return {"plotly": Markup(plotly), "script": Markup(script), "style": Markup(style), "policy": policy}
