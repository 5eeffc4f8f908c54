"""One culprit out of three witnesses: rows of logits, module tensors, KV cache. What disagrees is shown, not hidden."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.evidence import KV, TENSORS, Evidence
from accuracy_core.prompts.module_facts import KvFound, TensorPlace, kv_found, tensor_place
from accuracy_core.prompts.triage_tree import Fact, TriageNode
from accuracy_core.schemas import Culprit, KvPattern, Phase

#: kinds of modules that come behind keys and values in their own layer
_BEHIND_CACHE = {"attention_kernel", "attention_output", "mlp", "experts", "residual"}
PLUGIN_TEXT = {TENSORS: "tensor compare", KV: "KV cache"}


def name_culprit(
    rows: Culprit | None,
    evidence: Evidence,
    facts: Mapping[str, Fact],
    lit: Sequence[TriageNode],
    *,
    target: str = "",
    output: str = "",
) -> Culprit | None:
    """The culprit of a run: `rows` (from logits alone, None when they passed) made exact by tensors and KV.

    The first divergent module of tensor compare is the strongest witness; a cache that is at fault adds head and
    position, and names the layer where tensors are silent. One that keeps what was wrong before it is a consequence: it
    names no place that tensors found right. None when no witness blames anything.
    """
    place, kv = tensor_place(evidence.tensors), kv_found(evidence.kv)
    blamed = kv if kv is not None and kv.result.verdict is not Verdict.PASS else None
    if rows is None and place is None and blamed is None:
        return None
    base = rows or Culprit(phase=Phase.NONE)
    at_fault = bool(facts.get("kv_at_fault"))
    lines = list(base.evidence)
    where: dict[str, object] = {}
    if place is not None:
        lines += _tensor_lines(place)
        where = {
            "phase": place.phase,
            "module": place.first.module,
            "layer": place.first.layer,
            "head": place.first.head,
            # rows of both phases are off: the worst of them is no place
            "position": None if place.phase is Phase.BOTH else place.first.position,
            "prompt": place.prompt,
        }
    if kv is not None:
        lines += _kv_lines(kv)
    silent = place is None and facts.get("tensors") != "measured"
    if blamed is not None and (silent or at_fault):
        where = _with_cache(where, blamed, at_fault=at_fault, known=place is not None)
    lines += [
        f"{PLUGIN_TEXT.get(name, name)}: not measured ({reason})" for name, reason in evidence.not_measured.items()
    ]
    update = {
        **where,
        "evidence": lines,
        "contradictions": contradictions(
            base.phase, evidence, place, kv, at_fault=at_fault, kind=str(facts.get("module_kind", ""))
        ),
        "branch": _branch(base.branch, lit),
        **_advice(base, lit, facts, target, output),
    }
    return base.model_copy(update=update)


def _tensor_lines(place: TensorPlace) -> list[str]:
    first = place.first
    how = "given its own inputs" if first.local else "against the reference's own run"
    phases = "prefill and decode" if first.phase is Phase.BOTH else first.phase.value
    rows = f"{phases} rows" + (f", worst at position {first.position}" if first.position is not None else "")
    size = f"{first.ratio:.3g}× the dtype noise {how}"
    lines = [f"prompt {place.prompt}: first divergent module {first.module} ({rows}): {size}"]
    return lines + ([first.evidence] if first.evidence else [])


def _kv_lines(kv: KvFound) -> list[str]:
    result = kv.result
    if result.verdict is Verdict.PASS:
        return [
            f"KV cache: K and V of every layer within dtype noise (prompt {kv.prompt}, {result.positions} positions)"
        ]
    place = ""
    if result.first_bad is not None:
        bad = result.first_bad
        place = f"first bad {bad.which} in layer {bad.layer}"
        place += f", head {bad.head}" if bad.head is not None else ""
        place += f", position {bad.position}" if bad.position is not None else ""
    return [
        f"KV cache, prompt {kv.prompt}: pattern {result.pattern.value.replace('_', ' ')}; {place}",
        *result.evidence,
    ]


def _with_cache(where: dict[str, object], kv: KvFound, *, at_fault: bool, known: bool) -> dict[str, object]:
    """Place with head and position of the cache; the layer's attention is named when no module was."""
    bad = kv.result.first_bad
    if bad is None:
        return where
    if known:
        return {
            **where,
            "head": where["head"] if where["head"] is not None else bad.head,
            "position": bad.position if bad.position is not None else where["position"],
        }
    phase = kv.result.phase if kv.result.phase is not Phase.NONE else None
    place: dict[str, object] = {"layer": bad.layer, "head": bad.head, "position": bad.position, "prompt": kv.prompt}
    if at_fault:
        place["module"] = f"model.layers.{bad.layer}.self_attn.attn"  # the canonical tap that reads it
    return place | ({"phase": phase} if phase is not None else {})


def contradictions(
    phase: Phase, evidence: Evidence, place: TensorPlace | None, kv: KvFound | None, *, at_fault: bool, kind: str = ""
) -> list[str]:
    """Where the witnesses disagree. `phase` is the rows', `kind` that of the first divergent module."""
    found = []
    measured = any(result.verdict is not None for result in evidence.tensors.values())
    kv_bad = kv is not None and kv.result.verdict is not Verdict.PASS
    if place is not None:
        if phase in (Phase.PREFILL, Phase.BOTH) and place.phase is Phase.DECODE:
            found.append("token 0 deviates, but no module differs on the prompt's own rows")
        if phase is Phase.DECODE and place.phase is not Phase.DECODE:
            found.append(
                f"token 0 is clean, yet {place.first.module} differs on rows of the prompt already: "
                "the error does not reach the last prompt token's logits, or is small there"
            )
        if place.others:
            others = "; ".join(f"prompt {index}: {module}" for index, module in sorted(place.others.items()))
            found.append(f"prompts name different modules: prompt {place.prompt}: {place.first.module}; {others}")
        if kv_bad and not at_fault and kv is not None and kv.result.first_bad is not None:
            layer, pattern = kv.result.first_bad.layer, kv.result.pattern
            behind = _BEHIND_CACHE if place.first.layer == layer else None
            if place.first.layer is not None and layer < place.first.layer:
                found.append(
                    f"K or V of layer {layer} is wrong, yet the first divergent module is in layer {place.first.layer}"
                )
            elif behind and kind in behind:
                found.append(f"K or V of layer {layer} is wrong, yet {place.first.module} comes behind them")
            elif kv.result.cache_fault is None and pattern not in (
                KvPattern.SPREAD,
                KvPattern.NONE,
                KvPattern.NONFINITE,
            ):
                found.append(
                    f"the KV pattern ({pattern.value.replace('_', ' ')}) is a cache fault's, but {place.first.module} "
                    "in front of the cache is wrong already"
                )
    elif measured and kv_bad:
        found.append("the KV cache is wrong, but no module's output is: nothing that was compared reads the bad places")
    elif measured and phase is not Phase.NONE:
        found.append("logits deviate, but every compared module is within its limits")
    return found


def _branch(rows: str, lit: Sequence[TriageNode]) -> str:
    parts = [rows] if rows else []
    for group, word in (("module", "module"), ("kv", "KV")):
        nodes = [node.id for node in lit if node.group == group]
        if nodes:
            parts.append(f"{word}: {' → '.join(nodes)}")
    return "; ".join(parts)


def _advice(
    base: Culprit, lit: Sequence[TriageNode], facts: Mapping[str, Fact], target: str, output: str
) -> dict[str, object]:
    """Suspects, most exact first, and the next step of the most exact branch that has one."""
    exact = [node for group in ("kv", "module") for node in reversed(lit) if node.group == group]
    if not facts.get("kv_at_fault"):
        exact = [node for node in exact if node.group == "module"] + [node for node in exact if node.group == "kv"]
    located = bool(facts.get("module_found")) or bool(facts.get("kv_at_fault"))
    suspects = [text for node in exact for text in node.suspects]
    if not located:
        suspects = [*base.suspects, *suspects]
    step = next((node for node in exact if node.next and located), None)
    advice: dict[str, object] = {"suspects": list(dict.fromkeys(suspects)) or list(base.suspects)}
    if step is not None:
        module = shlex.quote(str(facts.get("module", "")))
        command = step.command.format(target=target or "--model MODEL", output=output or "OUTPUT", module=module)
        advice |= {"next_step": step.next, "next_command": command}
    return advice
