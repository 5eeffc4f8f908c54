"""Which values of a run are worse than those of the comparable runs before it."""

from __future__ import annotations

import functools
import math
import statistics
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accuracy_core.outcome import Verdict
from accuracy_core.report.history import HistoryEntry

_ORDER = {Verdict.PASS: 0, Verdict.SUSPECT: 1, Verdict.FAIL: 2}


def marks(entries: Sequence[HistoryEntry]) -> list[dict[str, str]]:
    """Per run, oldest first: name of the value -> why it is marked.

    Names: `verdict`, `sigma_ratio`, `agg_bc`, `score:<key>`, `stage:<name>`. A run is held against earlier ones with
    the same settings and without an injected fault.
    """
    return [_marks_of(entry, _comparable(entries[:index], entry)) for index, entry in enumerate(entries)]


def _comparable(earlier: Sequence[HistoryEntry], entry: HistoryEntry) -> list[HistoryEntry]:
    return [other for other in earlier if other.settings == entry.settings and other.fault is None]


def _marks_of(entry: HistoryEntry, before: list[HistoryEntry]) -> dict[str, str]:
    limits = _limits()
    found: dict[str, str] = {}
    judged = [other.verdict for other in before if other.verdict is not None]
    if entry.verdict is not None and judged and _ORDER[entry.verdict] > _ORDER[judged[-1]]:
        found["verdict"] = f"was {judged[-1].value} before"
    for key in entry.scores:
        reason = _score(entry, key, before, limits)
        if reason:
            found[f"score:{key}"] = reason
    ratio, distance = limits["sigma_ratio"], limits["bhattacharyya_distance"]
    _times(found, "sigma_ratio", entry, before, lambda e: e.sigma_ratio, ratio)
    _times(found, "agg_bc", entry, before, lambda e: 1 - e.agg_bc, distance)
    for stage in entry.stage_s:
        _seconds(found, stage, entry, before, limits["seconds"])
    return found


def _score(entry: HistoryEntry, key: str, before: list[HistoryEntry], limits: Any) -> str:
    """A score's difference has the standard errors of both sides in it; without them it cannot be judged."""
    now = entry.scores[key]
    earlier = [other.scores[key] for other in before if key in other.scores]
    values = _measured([score.value for score in earlier])
    errors = _measured([score.stderr for score in earlier])
    if not _enough(values) or not errors or math.isnan(now.stderr):
        return ""
    usual = statistics.median(values)
    spread = math.hypot(now.stderr, statistics.median(errors))
    drop = (usual - now.value) if now.higher_is_better else (now.value - usual)
    if drop <= limits["score"]["n_sigma"] * spread:
        return ""
    return f"{drop:.4g} worse than the usual {usual:.4g}, {drop / spread:.1f} standard errors" if spread else "worse"


def _times(
    found: dict[str, str],
    name: str,
    entry: HistoryEntry,
    before: list[HistoryEntry],
    value: Callable[[HistoryEntry], float],
    limit: dict[str, float],
) -> None:
    now, earlier = value(entry), _measured([value(other) for other in before])
    if math.isnan(now) or not _enough(earlier):
        return
    usual = statistics.median(earlier)
    if now > limit["factor"] * max(usual, limit["floor"]):
        found[name] = f"{now:.4g}, usually {usual:.4g}"


def _seconds(
    found: dict[str, str], stage: str, entry: HistoryEntry, before: list[HistoryEntry], limit: dict[str, float]
) -> None:
    now = entry.stage_s[stage]
    earlier = _measured([other.stage_s[stage] for other in before if stage in other.stage_s])
    if _enough(earlier) and now > max(limit["factor"] * (usual := statistics.median(earlier)), usual + limit["more"]):
        found[f"stage:{stage}"] = f"{now:.0f} s, usually {usual:.0f} s"


def _measured(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _enough(values: list[float]) -> bool:
    return len(values) >= _limits()["median"]["least"]


@functools.cache
def _limits() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = tomllib.loads(Path(__file__).with_name("history.toml").read_text("utf-8"))
    return found
