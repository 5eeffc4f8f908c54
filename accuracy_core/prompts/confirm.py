"""Proof of a culprit: with reference tensors put in at the suspected module, the error behind it must vanish."""

from __future__ import annotations

from collections.abc import Sequence

from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.replacing import Case, Experiment, Injections, outdoes
from accuracy_core.prompts.surroundings import LOGITS, comparable_taps, control_tap, layer_of, same_in_every_layer
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.schemas import Culprit, ReplacementTrial

#: one module's result: confirmed (None: not possible), the trials made, the result in words
Finding = tuple[bool | None, list[ReplacementTrial], str]


def confirm(culprit: Culprit, wrong: Sequence[str], case: Case, ctx: PluginContext, injections: Injections) -> Culprit:
    """`culprit` with the experiment's result. `wrong`: modules that tensor compare found wrong by themselves, in order.

    The culprit's module is confirmed when the rows return to what clean rows show with its output replaced and do not
    with its layer's inputs replaced (where that is possible), with its output replaced in every layer, or with all of
    `wrong` replaced together. Where several modules are replaced, as many comparable ones that are right by themselves
    must not do nearly the same. Where its own replacement is not enough, the next of `wrong` in another layer is
    tried alone: if that is enough, it becomes the culprit. `confirmed` stays None when no replay could be made, with
    the reason. Raises EngineDiedError when the engine goes.
    """
    bench = Experiment(case, ctx, injections, load_triage_tree(), tuple(wrong))
    module = str(culprit.module)
    verdict, trials, text = _examine(module, bench)
    if verdict is not False:
        return culprit.model_copy(update={"trials": trials, "confirmed": verdict, "confirmation": text})
    texts = [text]
    same = same_in_every_layer(module, bench.taps)
    if trials[0].kind == "output" and not trials[0].healed and not set(wrong) <= {module, *same}:
        verdict, made, text = _together(module, bench)
        trials, texts = [*trials, *made], [*texts, text]
    update: dict[str, object] = {}
    second = next((tap for tap in wrong if tap not in {module, *same} and layer_of(tap) != culprit.layer), None)
    if second is not None:
        alone, made, text = _examine(second, bench, everywhere=False)
        trials, texts = [*trials, *made], [*texts, text]
        if alone:
            verdict, update = True, _moved(culprit, second)
    update |= {"trials": trials, "confirmed": verdict, "confirmation": "; then ".join(texts)}
    return culprit.model_copy(update=update)


def _moved(culprit: Culprit, module: str) -> dict[str, object]:
    note = f"{culprit.module} was named first, but replacing it did not remove the error"
    return {
        "module": module,
        "layer": layer_of(module),
        "head": None,
        "position": None,
        "contradictions": [*culprit.contradictions, note],
    }


def _examine(module: str, bench: Experiment, *, everywhere: bool = True) -> Finding:
    """One module, and with `everywhere` the same module in every layer."""
    control = control_tap(module, bench.taps, bench.tree)
    if bench.tree.kind_of(module) in LOGITS:
        if control is None:
            return None, [], f"{module}: nothing in front of it was captured, so nothing can be replaced"
        trial = bench.trial("inputs", control)
        if trial.healed is None:
            return None, [trial], f"{module}: not possible ({trial.reason})"
        return not trial.healed, [trial], _inputs_text(module, trial)
    output = bench.trial("output", module)
    if output.healed is None:
        return None, [output], f"{module}: not possible ({output.reason})"
    if not output.healed and everywhere:
        return _everywhere(module, output, bench)
    if not output.healed:
        return False, [output], f"{module}: replaced alone, and the error stays ({_figures(output)})"
    text = f"{module}: replaced, and the error vanishes ({_figures(output)})"
    if control is None:
        return True, [output], text
    inputs = bench.trial("inputs", control)
    if inputs.healed is None:
        return True, [output, inputs], f"{text}; its inputs could not be replaced ({inputs.reason})"
    return not inputs.healed, [output, inputs], f"{text}; {_inputs_text(module, inputs)}"


def _everywhere(module: str, output: ReplacementTrial, bench: Experiment) -> Finding:
    """The same module in every layer: code that is wrong is wrong in all of them."""
    text = f"{module}: replaced alone, and the error stays ({_figures(output)})"
    others = same_in_every_layer(module, bench.taps)
    if len(others) < 2:
        return False, [output], text
    name = f"replaced in all {len(others)} layers that have it"
    verdict, trials, found = _several("every_layer", module, others, name, bench)
    return verdict, [output, *trials], f"{text}; {found}"


def _together(module: str, bench: Experiment) -> Finding:
    taps = list(dict.fromkeys([module, *bench.wrong]))
    name = f"all {len(taps)} modules that are wrong by themselves replaced together"
    return _several("together", module, taps, name, bench)


def _several(kind: str, module: str, taps: Sequence[str], name: str, bench: Experiment) -> Finding:
    """Replace `taps` at once; where that heals, as many comparable modules instead.

    Reference tensors in many places take much of any noise out, and of a row that reacts to every rounding they make
    another one. So they prove something only if it matters where they are put in.
    """
    trial = bench.trial(kind, module, taps)
    if trial.healed is None:
        return False, [trial], f"{name}: not possible ({trial.reason})"
    text = f"{name}, the error {'vanishes' if trial.healed else 'stays'} ({_figures(trial)})"
    if not trial.healed:
        return False, [trial], text
    like = comparable_taps(taps, bench.taps, bench.tree, but=bench.wrong, possible=bench.injections.possible)
    if not like:
        return True, [trial], text
    control = bench.trial("comparable", like[0], like)
    if control.healed is None:
        return True, [trial, control], f"{text}; comparable modules could not be replaced ({control.reason})"
    said = f"{len(like)} comparable modules ({like[0]} and so on) replaced instead"
    if not control.healed:
        return True, [trial, control], f"{text}; with {said} it stays ({_figures(control)})"
    proven = outdoes(trial, control, bench.tree)
    judged = "much more is left" if proven else "nothing is proven"
    text += f"; with {said} it vanishes, too ({_figures(control)}): {judged}"
    return proven, [trial, control], text


def _inputs_text(module: str, trial: ReplacementTrial) -> str:
    if trial.healed:
        return f"with {trial.module} replaced it vanishes, too ({_figures(trial)}): the fault lies in front of {module}"
    return f"with clean inputs ({trial.module} replaced) it stays ({_figures(trial)})"


def _figures(trial: ReplacementTrial) -> str:
    guards = f", guards {trial.guards_before} → {trial.guards_after}" if trial.guards_before else ""
    return f"L2 {trial.l2_before:.3g} → {trial.l2_after:.3g}{guards}"
