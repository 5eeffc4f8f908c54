"""From what the plugins found to a named and, where possible, proven culprit."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from accuracy_core.errors import AssayError, InfrastructureError
from accuracy_core.outcome import Verdict
from accuracy_core.prompts.confirm import confirm
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.escalation import ESCALATED, escalate
from accuracy_core.prompts.evidence import LOGITS, TENSORS, Evidence, read_evidence
from accuracy_core.prompts.merge import merge_plugins
from accuracy_core.prompts.prepared import PreparedPrompts
from accuracy_core.prompts.registry import PLUGIN_REGISTRY, make_plugins
from accuracy_core.prompts.replacing import open_case, size
from accuracy_core.prompts.running import Work
from accuracy_core.prompts.surroundings import control_tap, in_front, same_in_every_layer
from accuracy_core.prompts.triage import Location, Triage, triage
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.schemas import ComparisonSummary, Culprit, EngineSpec, PromptAnalysisStatus, PromptResult, RunDir


def investigate(ctx: PluginContext, work: Work, spec: EngineSpec, modules: Sequence[str] = ()) -> None:
    """Triage while the engine is still open: further plugins on the worst failing prompts, then the proof.

    `modules` are the patterns for tensor compare (empty: all). Leaves the result in `work.found`.
    """
    evidence = gather(ctx.output_dir, work)
    missing = [name for name in ESCALATED if name in PLUGIN_REGISTRY and name not in work.status]
    mine = {prompt.index for prompt in ctx.prepared}
    failed = [result for index, result in evidence.logits.items() if index in mine]
    if missing:
        escalate(ctx, work, failed, make_plugins(missing, plugin_options(modules)))
    found = find_culprit(ctx.output_dir, work, spec)
    work.found = Triage(found.facts, found.lit, found.phase, _proven(found, ctx, work))


def plugin_options(modules: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Keywords for plugins that are made by name: the module patterns of tensor compare (none: all modules)."""
    return {TENSORS: {"modules": list(modules)}} if modules else {}


def find_culprit(run_dir: RunDir, work: Work, spec: EngineSpec) -> Triage:
    """Branches and culprit of the directory as it is after this call, from the files and from what is in `work`."""
    old = earlier_status(run_dir)
    plugins = merge_plugins(old, work.status)
    evidence = gather(run_dir, work)
    location = _location(work, old)
    judged = next((name for name in work.results if _rows(work, name)), LOGITS)
    found = triage(
        list(evidence.logits.values()),
        plugins.get(judged),
        location=location,
        evidence=evidence,
        target=target_options(spec),
        output=shlex.quote(str(run_dir.root)),
    )
    if found.culprit is not None and found.culprit.module is not None:
        return found
    for results in work.results.values():
        named = results.get("culprit")
        if isinstance(named, Culprit) and (named.module is not None or named.layer is not None):
            phase = found.phase if found.culprit is not None else named.phase
            return Triage(found.facts, found.lit, phase, named)
    return found


def gather(run_dir: RunDir, work: Work) -> Evidence:
    """Evidence of all prompts of the directory; rows of this call come from memory."""
    manifest = run_dir.read(run_dir.prompt_analysis / "prompts.json", PreparedPrompts)
    plugins = merge_plugins(earlier_status(run_dir), work.status)
    reasons = work.escalation.not_measured if work.escalation is not None else {}
    evidence = read_evidence(run_dir, [prompt.index for prompt in manifest.prompts], plugins, reasons)
    fresh = {result.index: result for name in work.results for result in _rows(work, name)}
    return Evidence({**evidence.logits, **fresh}, evidence.tensors, evidence.kv, evidence.not_measured)


def earlier_status(run_dir: RunDir) -> PromptAnalysisStatus | None:
    path = run_dir.prompt_analysis_json
    return run_dir.read(path, PromptAnalysisStatus) if path.exists() else None


def target_options(spec: EngineSpec) -> str:
    """Options of `assay run` that select the same target, quoted for a shell."""
    from accuracy_core.models import EMBEDDED, embedded_model

    words = ["--model", EMBEDDED if spec.model == str(embedded_model()) else spec.model]
    for option, value, default in (
        ("--engine", spec.engine, "vllm"),
        ("--platform", spec.platform.value, "cpu"),
        ("--dtype", spec.dtype, "bfloat16"),
        ("--tp", str(spec.tensor_parallel_size), "1"),
        ("--fault", spec.fault.name if spec.fault else "", ""),
    ):
        words += [option, value] if value != default else []
    return shlex.join(words)


def _rows(work: Work, name: str) -> list[PromptResult]:
    found = work.results.get(name, {}).get("prompts", [])
    return [item for item in found if isinstance(item, PromptResult)]


def _location(work: Work, old: PromptAnalysisStatus | None) -> Location:
    given = next((results["location"] for results in work.results.values() if results.get("location")), None)
    if isinstance(given, Location):
        return given
    return Location(old.phase) if old is not None else Location()


def _proven(found: Triage, ctx: PluginContext, work: Work) -> Culprit | None:
    """The culprit after the replacement experiment, or as it was with the reason why there was none."""
    from accuracy_core.prompts.injections import captured_injections, injection_plan

    culprit = found.culprit
    if culprit is None or culprit.module is None:
        return culprit
    evidence = gather(ctx.output_dir, work)
    place = {prompt.index: position for position, prompt in enumerate(ctx.prepared)}
    named = [
        index
        for index, result in evidence.tensors.items()
        if index in place and result.first_divergent is not None and result.first_divergent.module == culprit.module
    ] or [index for index in (culprit.prompt,) if index in place]
    chosen = max(named, key=lambda index: (_error(evidence, index), -index), default=None)
    if chosen is None:
        return culprit.model_copy(update={"confirmation": "not tried: the prompt is not one of this call's"})
    ordered = sorted(evidence.tensors[chosen].modules, key=lambda row: row.order) if chosen in evidence.tensors else []
    wrong = list(dict.fromkeys(row.module for row in ordered if row.verdict is Verdict.FAIL))
    try:
        case = open_case(ctx, place[chosen])
        order = list(dict.fromkeys(row.module for row in ordered)) or injection_plan(ctx).taps
        modules = list(dict.fromkeys([culprit.module, *wrong]))
        controls = [control_tap(module, order, load_triage_tree()) for module in modules]
        everywhere = same_in_every_layer(culprit.module, order)
        like = [tap for module in {*modules, *everywhere} for tap in in_front(module, order, load_triage_tree())]
        wanted = list(dict.fromkeys([*modules, *(tap for tap in controls if tap is not None), *everywhere, *like]))
        with captured_injections(ctx, case.position, case.forced, order, wanted) as injections:
            proven = confirm(culprit, wrong, case, ctx, injections)
        _note(ctx.output_dir, culprit, proven)
        return proven
    except (AssayError, OSError) as error:
        text = error.message if isinstance(error, AssayError) else str(error)
        if isinstance(error, InfrastructureError):
            work.log_tail = error.log_tail or work.log_tail
        return culprit.model_copy(update={"confirmation": f"not possible: {text}"})


def _note(run_dir: RunDir, named: Culprit, proven: Culprit) -> None:
    """The result of the experiment goes into the summary of tensor compare, too."""
    path = run_dir.tensor_compare / "comparison_summary.json"
    if path.exists() and proven.confirmed is not None:
        summary = run_dir.read(path, ComparisonSummary)
        confirmed = proven.confirmed and proven.module == named.module
        run_dir.write(path, summary.model_copy(update={"confirmed": confirmed}))


def _error(evidence: Evidence, index: int) -> float:
    """How far the logits of a prompt are off; 0 when they were not compared."""
    rows = evidence.logits[index].rows if index in evidence.logits else []
    value = size(rows)
    return 0.0 if math.isnan(value) else value
