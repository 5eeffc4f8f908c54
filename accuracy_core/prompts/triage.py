"""From evidence to the lit branches of the triage tree and a culprit. Numbers are looked at, never a fault's name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from accuracy_core.outcome import Verdict, worst
from accuracy_core.prompts.culprit import name_culprit
from accuracy_core.prompts.evidence import Evidence
from accuracy_core.prompts.module_facts import module_facts
from accuracy_core.prompts.triage_tree import Fact, TriageNode, TriageTree, load_triage_tree
from accuracy_core.schemas import Culprit, Phase, PluginStatus, PromptResult, RowMetrics

_PHASE_TEXT = {
    Phase.NONE: "not located",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode (KV or attention suspected)",
    Phase.BOTH: "both",
}


def phase_text(phase: Phase) -> str:
    """How a phase is named to the user."""
    return _PHASE_TEXT[phase]


@dataclass(frozen=True)
class Location:
    """Where the comparison of all prompts found rows bad; NONE where it could not tell."""

    phase: Phase = Phase.NONE
    first_bad_token: int | None = None


@dataclass(frozen=True)
class Triage:
    """Facts, the lit nodes (parents first) and what follows from them. `culprit` is None for a pass."""

    facts: dict[str, Fact]
    lit: list[TriageNode]
    phase: Phase
    culprit: Culprit | None


def row_is_bad(row: RowMetrics, tree: TriageTree | None = None) -> bool:
    """True when a guard fired on the row or its error exceeds what the dtype explains.

    Guards alone would place a fault too late: their limits are wide, so a fault that raises every row's error threefold
    crosses them on some rows only. Where no ratio was measured the static two-way rule decides.
    """
    bounds = (tree or load_triage_tree()).bounds
    if row.bad:
        return True
    ratios = [(row.l2_ratio, bounds["row_l2_ratio"]), (row.linf_ratio, bounds["row_linf_ratio"])]
    measured = [(value, bound) for value, bound in ratios if not math.isnan(value)]
    if not measured:
        return not row.two_way_passed
    return any(value > bound for value, bound in measured)


def locate(result: PromptResult) -> tuple[Phase, int | None]:
    """Phase and first bad generation index of one prompt: the comparison's, or the rows' own where it was silent.

    A prompt that passed, or has no rows, has none.
    """
    if result.verdict is None or result.verdict is Verdict.PASS:
        return Phase.NONE, None
    if result.phase is not Phase.NONE:
        return result.phase, result.first_bad_token
    bad = _bad_rows(result, load_triage_tree())
    return phase_of(bad), min(bad, default=None)


def phase_of(bad_tokens: set[int]) -> Phase:
    """Token 0 comes out of prefill, every later one out of a decode step."""
    later = any(token > 0 for token in bad_tokens)
    if 0 in bad_tokens:
        return Phase.BOTH if later else Phase.PREFILL
    return Phase.DECODE if later else Phase.NONE


def triage(
    results: Sequence[PromptResult],
    status: PluginStatus | None = None,
    *,
    location: Location | None = None,
    evidence: Evidence | None = None,
    target: str = "",
    output: str = "",
) -> Triage:
    """Branches and culprit for the prompts of one run.

    `status` carries the verdict and the aggregates over all prompts; without it the worst prompt counts. `location` is
    what the comparison found over all prompts; where it is silent (no guard fired) single rows decide. `evidence` adds
    what tensor compare and KV compare found. `target` (options of `assay run` that select it) and `output` fill the
    next command. `phase` is the rows'; the culprit's may be more exact.
    """
    tree = load_triage_tree()
    measured = [result for result in results if result.verdict is not None]
    verdicts = [result.verdict for result in measured if result.verdict is not None]
    verdict = status.verdict if status is not None else worst(verdicts) if verdicts else None
    failing = [result for result in measured if result.verdict is not Verdict.PASS] or measured
    facts: dict[str, Fact] = {}
    if verdict is not None:
        facts = _facts(tree, verdict, failing, status, location or Location())
    if evidence is not None:
        facts |= module_facts(tree, evidence)
    lit = tree.lit(facts)
    phase, culprit = Phase.NONE, None
    if verdict is not None and verdict is not Verdict.PASS:
        phase = _run_phase(facts)
        culprit = _culprit(phase, lit, facts, failing, target, output)
    if evidence is not None:
        culprit = name_culprit(culprit, evidence, facts, lit, target=target, output=output)
    return Triage(facts=facts, lit=lit, phase=phase, culprit=culprit)


def _facts(
    tree: TriageTree,
    verdict: Verdict,
    failing: Sequence[PromptResult],
    status: PluginStatus | None,
    location: Location,
) -> dict[str, Fact]:
    token0, first_later = _bad_tokens(tree, failing, location)
    guard = any(result.guards or any(row.bad for row in result.rows) for result in failing)
    ratios = [row.l2_ratio for result in failing for row in result.rows if not math.isnan(row.l2_ratio)]
    bc = (status.aggregates if status is not None else {}).get("agg_bc", math.nan)
    worst_ratio = max(ratios, default=math.nan)
    size = {"guard_fired": guard, "worst_ratio": worst_ratio, "bc": bc}
    noise = not guard and worst_ratio <= tree.bounds["noise_ratio"] and bc >= tree.bounds["noise_bc"]
    return {
        "verdict": verdict.value,
        "deviates": verdict is not Verdict.PASS,
        "n_prompts_failing": float(len(failing)),
        "token0_bad": token0,
        "later_bad": not math.isnan(first_later),
        "first_bad_token": first_later,
        **size,
        "noise": noise,
        "borderline_or_noise": noise or (not guard and worst_ratio <= tree.bounds["borderline_ratio"]),
    }


def _bad_tokens(tree: TriageTree, failing: Sequence[PromptResult], location: Location) -> tuple[bool, float]:
    """Is token 0 bad, and the first bad later token over the prompts (NaN when later ones are clean)."""
    bad = [_bad_rows(result, tree) for result in failing]
    need = tree.bounds["min_share"] * len(failing)
    later = [min(token for token in tokens if token > 0) for tokens in bad if any(token > 0 for token in tokens)]
    first_later = float(median_low(later)) if later else math.nan
    if location.phase is Phase.NONE:
        token0 = sum(0 in tokens for tokens in bad)
        return 0 < token0 >= need, first_later if later and len(later) >= need else math.nan
    if location.phase is Phase.PREFILL:
        return True, math.nan
    found = [r.first_bad_token for r in failing if r.phase is Phase.DECODE and r.first_bad_token]
    if found:  # what the comparison found proves more than a single row above a bound
        first_later = min(float(median_low(found)), _common_onset(tree, bad))
    if math.isnan(first_later):  # guards on groups of rows only: no single row stands out
        first_later = float(location.first_bad_token or 1)
    return location.phase is Phase.BOTH, first_later


def _common_onset(tree: TriageTree, bad: Sequence[set[int]]) -> float:
    """First later token that is bad in most of the failing prompts; infinite for too few prompts to tell.

    A guard needs a large error; where a fault begins, several prompts are off by less at the same token.
    """
    if len(bad) < tree.bounds["onset_prompts"]:
        return math.inf
    tokens = sorted({token for tokens in bad for token in tokens if token > 0})
    common = (token for token in tokens if 2 * sum(token in one for one in bad) > len(bad))
    return float(next(common, math.inf))


def _bad_rows(result: PromptResult, tree: TriageTree) -> set[int]:
    bad = {row.token for row in result.rows if row_is_bad(row, tree)}
    return bad | {hit.token for hit in result.guards if hit.token >= 0}


def _run_phase(facts: dict[str, Fact]) -> Phase:
    if facts["token0_bad"]:
        return Phase.BOTH if facts["later_bad"] else Phase.PREFILL
    return Phase.DECODE if facts["later_bad"] else Phase.NONE


def _culprit(
    phase: Phase,
    lit: Sequence[TriageNode],
    facts: dict[str, Fact],
    failing: Sequence[PromptResult],
    target: str,
    output: str,
) -> Culprit:
    where = [node for node in lit if node.group == "where"]
    last = where[-1]
    size = [node for node in lit if node.group == "size"]
    evidence = [f"{len(failing)} prompt(s) deviate; phase by rows: {phase_text(phase)}"]
    for result in failing[:3]:
        prompt_phase, first = locate(result)
        if first is not None:
            row = next((row for row in result.rows if row.token == first), None)
            ratio = f", L2 {row.l2_ratio:.3g}× the dtype noise" if row and not math.isnan(row.l2_ratio) else ""
            evidence.append(
                f"prompt {result.index}: first bad row is token {first} (phase {phase_text(prompt_phase)}){ratio}"
            )
        if result.guards:
            hit = result.guards[0]
            place = f"prompt {result.index}, token {hit.token}" if hit.token >= 0 else f"prompt {result.index}"
            place = place if hit.prompt >= 0 else "all prompts"
            numbers = f"{hit.value:.3g}, limit {hit.limit:.3g}"
            evidence.append(f"guard {hit.guard} ({place}): {numbers} {hit.detail}".rstrip())
    if not math.isnan(float(facts["worst_ratio"])):
        evidence.append(f"worst L2 ratio over the rows: {float(facts['worst_ratio']):.3g}×")
    evidence += [f"{node.label}: {node.says}" for node in size]
    return Culprit(
        phase=phase,
        branch=" → ".join(node.id for node in where),
        evidence=evidence,
        suspects=list(last.suspects),
        next_step=last.next,
        next_command=last.command.format(target=target or "--model MODEL", output=output or "OUTPUT", module=""),
    )
