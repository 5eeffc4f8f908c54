"""A run becomes part of the history of its model on its device."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime

from accuracy_core.errors import AssayError
from accuracy_core.paths import cache_root
from accuracy_core.pipeline.run import Run
from accuracy_core.pipeline.stages import PARTS
from accuracy_core.prompts.conclusion import Conclusion
from accuracy_core.report.evidence import LOGITS, RunEvidence
from accuracy_core.report.history import SHOWN, HistoryEntry, HistoryIndex, HistoryScore
from accuracy_core.schemas import PluginStatus, StageRecord, TaskStatus, fingerprint

log = logging.getLogger(__name__)
#: directory, or s3:// location, of the history
HISTORY_DIR = "ASSAY_HISTORY_DIR"
FILE = "history.json"


def history_location(run: Run) -> str:
    """The run's `history_dir`, else `$ASSAY_HISTORY_DIR`, else a folder of the cache."""
    return run.parameters.history_dir or os.environ.get(HISTORY_DIR) or str(cache_root() / "history")


def record_history(run: Run, conclusion: Conclusion) -> None:
    """Add the run to the index and write `history.json` into its directory.

    A run that asked the engine nothing is not added; its report shows the history as it is. Trouble with the index is
    logged: it costs no run its report.
    """
    try:
        entry = _entry(run, conclusion)
        index = HistoryIndex(history_location(run))
        if entry.measured:
            index.append(entry)
        window = index.window(entry.model_fingerprint, entry.device, last=SHOWN)
        run.run_dir.write(run.run_dir.root / FILE, window)
    except (AssayError, OSError) as error:
        log.warning("history: %s", error)


def _entry(run: Run, conclusion: Conclusion) -> HistoryEntry:
    found = RunEvidence(run.run_dir)
    logits = found.plugin(LOGITS)
    worst = logits.worst if logits is not None else None
    engine = run.parameters.engine
    return HistoryEntry(
        written=datetime.now(UTC),
        model=run.model_name,
        model_fingerprint=run.model_fingerprint,
        device=f"{engine.platform.value}-{engine.engine}-tp{engine.tensor_parallel_size}",
        settings=_settings(run),
        fault=engine.fault.name if engine.fault else None,
        outcome=conclusion.outcome,
        verdict=conclusion.verdict,
        banner=conclusion.banner,
        headline=conclusion.headline,
        scores=_scores(found.task),
        sigma_ratio=_aggregate(logits, "sigma_ratio"),
        agg_bc=_aggregate(logits, "agg_bc"),
        worst_guard=worst.guard if worst is not None else "",
        worst_value=worst.value if worst is not None else float("nan"),
        worst_limit=worst.limit if worst is not None else float("nan"),
        stage_s={record.stage: record.duration_s for record in found.stages if _computed(record, run)},
        cached=[record.stage for record in found.stages if record.status == "cached"],
        location=run.location,
        versions=run.versions,
    )


def _computed(record: StageRecord, run: Run) -> bool:
    """Done by this run: the records of stages that it left out are an earlier run's."""
    part_of = PARTS.get(record.stage, record.stage)
    return record.status == "done" and part_of in run.parameters.stages


def _settings(run: Run) -> str:
    """What two runs must share for their numbers to be compared; the engine's own settings are what is compared."""
    parameters = run.parameters
    evaluation = parameters.evaluation.model_dump(mode="json", exclude={"request_timeout_s", "num_concurrent"})
    return fingerprint({"evaluation": evaluation, "prompts": parameters.prompt_analysis.model_dump(mode="json")})


def _scores(task: TaskStatus | None) -> dict[str, HistoryScore]:
    if task is None:
        return {}
    judged = {result.key: result for result in task.thresholds if result.key}
    return {
        row.key: HistoryScore(
            value=row.value,
            stderr=row.stderr,
            higher_is_better=row.higher_is_better,
            bound=judged[row.key].bound if row.key in judged else float("nan"),
            passed=judged[row.key].passed if row.key in judged else None,
        )
        for row in task.scores
    }


def _aggregate(logits: PluginStatus | None, name: str) -> float:
    return float(logits.aggregates.get(name, float("nan"))) if logits is not None else float("nan")
