"""Module tensors of one prompt as columns: what table and curves are drawn from."""

from __future__ import annotations

import math
from typing import Any

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.surroundings import layer_of
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.schemas import ModuleMetrics, Phase, TensorCompareResult

_DIGITS = 5
_METRICS = ("l2", "base_l2", "l2_ratio", "linf_ratio", "bc", "local_l2", "local_base_l2", "local_ratio")
#: positions in the map of error by layer and position; longer prompts are thinned, the worst of each group stays
_POSITIONS = 400


def tensor_columns(result: TensorCompareResult) -> dict[str, Any]:
    """Modules per phase in order of execution, the first divergent one, and error by layer and position."""
    first = result.first_divergent
    return {
        "first": None if first is None else {"module": first.module, "phase": first.phase.value, "local": first.local},
        "prompt_length": result.prompt_length,
        "phases": {phase.value: _phase(result, phase) for phase in (Phase.PREFILL, Phase.DECODE)},
        "progression": _progression(result),
    }


def _phase(result: TensorCompareResult, phase: Phase) -> dict[str, Any]:
    rows = sorted((row for row in result.modules if row.phase is phase), key=lambda row: row.order)
    columns: dict[str, Any] = {name: [_finite(getattr(row, name)) for row in rows] for name in _METRICS}
    return columns | {
        "module": [row.module for row in rows],
        "order": [row.order for row in rows],
        "layer": [row.layer for row in rows],
        "rows": [row.rows for row in rows],
        "worst_position": [row.worst_position for row in rows],
        "nonfinite": [row.nonfinite for row in rows],
        "verdict": [row.verdict.value if row.verdict else None for row in rows],
        "problem": [row.problem for row in rows],
        "depth": [index for index, row in enumerate(rows) if is_stream(row)],
    }


def is_stream(row: ModuleMetrics) -> bool:
    """The residual stream behind a layer, or what enters the first one: where error is followed over depth."""
    kind = load_triage_tree().kind_of(row.module)
    last = row.module.rsplit(".", 1)[-1]
    return (kind == "residual" and last.isdigit()) or (kind == "embedding" and layer_of(row.module) is None)


def wrong_rows(result: TensorCompareResult) -> list[ModuleMetrics]:
    """Modules that are wrong by themselves, in order of execution, prefill before decode."""
    phases = [Phase.PREFILL, Phase.DECODE]
    rows = [row for row in result.modules if row.verdict is Verdict.FAIL]
    return sorted(rows, key=lambda row: (row.order, phases.index(row.phase) if row.phase in phases else 9))


def carried_on(result: TensorCompareResult) -> int:
    """How many modules are right by themselves and only carry an earlier error on."""
    return sum(row.verdict is Verdict.SUSPECT for row in result.modules)


def _progression(result: TensorCompareResult) -> dict[str, Any]:
    longest = max((len(values) for values in result.progression.values()), default=0)
    step = max(1, math.ceil(longest / _POSITIONS))
    taps = sorted(result.progression, key=lambda tap: (layer_of(tap) if layer_of(tap) is not None else -1, tap))
    return {
        "taps": taps,
        "positions": list(range(0, longest, step)),
        "values": [_thinned(result.progression[tap], step) for tap in taps],
    }


def _thinned(values: list[float], step: int) -> list[float | None]:
    groups = [values[start : start + step] for start in range(0, len(values), step)]
    return [_finite(max(group, key=lambda value: math.inf if math.isnan(value) else value)) for group in groups]


def _finite(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
