"""Task of the report."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from accuracy_core.pipeline.mirror import is_remote
from accuracy_core.pipeline.report_stage import build_report
from accuracy_core.pipeline.run import Run
from accuracy_core.prompts.conclusion import Conclusion
from tasks.showing import showing


@task(name="report", cache_policy=NO_CACHE, persist_result=False)
def report_task(run: Run, conclusion: Conclusion) -> str:
    """Write `combined_report.html` and `report.json`, and a summary for the UI. Returns the page's path."""
    page = build_report(run, conclusion)
    with showing("the summary"):
        create_markdown_artifact(summary(run, conclusion, page), key="summary", description="What this run says")
        link, text = page if is_remote(page) else f"file://{page}", "combined_report.html"
        create_link_artifact(link, key="report", link_text=text, description=f"Run in `{run.location}`")
    return page


def summary(run: Run, conclusion: Conclusion, page: str) -> str:
    """Markdown summary. The headline may quote model output, so it goes into a code block."""
    verdict = conclusion.verdict.value if conclusion.verdict else "none"
    rows = {
        "outcome": conclusion.outcome.value,
        "verdict": verdict,
        "model": run.model_name,
        "platform": run.engine.platform.value,
        "fault injected": run.engine.fault.name if run.engine.fault else "none",
        "report": page,
    }
    table = "\n".join(f"| {name} | `{value}` |" for name, value in rows.items())
    headline = conclusion.headline.replace("```", "'''")
    return f"```\n{headline}\n```\n\n| | |\n|---|---|\n{table}\n"
