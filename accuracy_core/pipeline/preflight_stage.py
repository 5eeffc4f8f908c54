"""Stage 0: is the set-up right? Before any device work and any golden, and again over what the evaluation showed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from accuracy_core.pipeline import progress
from accuracy_core.pipeline.evaluation import results_location
from accuracy_core.pipeline.mirror import synchronised
from accuracy_core.pipeline.preflight_findings import keep_findings
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import recorded
from accuracy_core.prompts.preflight import PreflightFacts, PreflightReport, checkpoint_facts, run_preflight
from accuracy_core.prompts.tokens import load_tokenizer

STAGE = "preflight"
#: the second part, when the evaluation's requests are known; recorded by itself, as references are
REQUESTS = "preflight_requests"


def check_setup(run: Run) -> PreflightReport:
    """Check the checkpoint, its tokenizer and the engine's settings; writes `preflight.json` and its own part of it.

    Raises ConfigurationError with the evidence and the fix of every error that was not accepted.
    """

    def examine() -> PreflightReport:
        facts = checkpoint_facts(run.engine, Path(run.model_path), chat=run.parameters.evaluation.chat)
        return run_preflight(facts, ["checkpoint", "tokenizer"])

    return _examined(run, STAGE, examine)


def check_requests(run: Run) -> PreflightReport:
    """Check what the evaluation's server saw and answered; adds to `preflight.json`.

    Raises as `check_setup`.
    """

    def examine() -> PreflightReport:
        from accuracy_core.evals.readers.read import read_results
        from accuracy_core.prompts.preflight.evaluated import filter_facts, requests_seen

        results = read_results(results_location(run))
        tokenizer = load_tokenizer(run.model_path, run.parameters.engine.tokenizer)
        facts = PreflightFacts(
            spec=run.engine,
            tokenizer=tokenizer,
            seen=requests_seen(results, tokenizer),
            filters=filter_facts(results),
        )
        return run_preflight(facts, ["requests"])

    return _examined(run, REQUESTS, examine)


def adopt(run: Run, stage: str) -> PreflightReport:
    """Make what `stage` found part of `preflight.json`: just now, or in an earlier run with the same inputs.

    Returns the whole report; raises as `check_setup`.
    """
    with synchronised(run.parameters.output_dir):
        _forget(run, stage)
        return keep_findings(run, run.run_dir.read(run.run_dir.preflight_part(stage), PreflightReport))


def is_complete(run: Run, stage: str) -> bool:
    """What could not be measured this time is tried again by the next run."""
    return not run.run_dir.read(run.run_dir.preflight_part(stage), PreflightReport).not_measured


def _examined(run: Run, stage: str, examine: Callable[[], PreflightReport]) -> PreflightReport:
    accept = run.parameters.preflight.accept
    inputs = {"target": run.target_identity, "accept": sorted(accept)}
    with synchronised(run.parameters.output_dir), recorded(run.run_dir, stage, inputs, ["preflight.json"]):
        _forget(run, stage)
        found = examine().accepting(accept)
        run.run_dir.write(run.run_dir.preflight_part(stage), found)
        progress.report(stage, message=_told(found))
        return adopt(run, stage)


def _forget(run: Run, stage: str) -> None:
    """What an earlier run of this directory found; the first part begins anew."""
    if stage == STAGE:
        run.run_dir.preflight_json.unlink(missing_ok=True)


def _told(report: PreflightReport) -> str:
    standings = [result.standing for result in report.results]
    counts = {word: standings.count(word) for word in dict.fromkeys(standings)}
    return f"{len(standings)} checks: " + ", ".join(f"{count} {word}" for word, count in counts.items())
