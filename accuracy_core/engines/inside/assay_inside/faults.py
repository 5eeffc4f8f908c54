"""Injection of numerical faults into a loaded vLLM model; the counterpart of `accuracy_core.faults` for Hugging Face.

Needs eager execution: a compiled model never calls the hooks. Weights of the CPU backend are packed after loading, so
faults change outputs and attributes, never `weight`. Every injection can be taken out again, so that one loaded engine
serves many faults, one after the other.
"""

from typing import Any, Callable, Dict, List

from assay_inside import faults_attention, faults_ends, faults_kv, faults_modules, faults_serving
from assay_inside.faults_common import FaultNotApplicable
from assay_inside.patching import Undo, take_back

Injection = Callable[[Any, Dict[str, Any], Undo], List[str]]
INJECTIONS: Dict[str, Injection] = dict(
    faults_modules.INJECTIONS,
    **faults_attention.INJECTIONS,
    **faults_kv.INJECTIONS,
    **faults_ends.INJECTIONS,
    **faults_serving.INJECTIONS,
)

#: what takes the faults of this process out again, in order of injection
_undo: Undo = []


def inject(runner: Any, fault: Dict[str, Any]) -> List[str]:
    """Put `fault` (name, layer, strength, position, params) into the runner's model. Returns the modules concerned.

    Raises FaultNotApplicable, and leaves the model as it was, where there is no place for it.
    """
    try:
        injection = INJECTIONS[fault["name"]]
    except KeyError:
        raise FaultNotApplicable("%r is unknown inside the engine" % fault["name"]) from None
    undo: Undo = []
    try:
        where = injection(runner, fault, undo)
    except BaseException:
        take_back(undo)
        raise
    _undo.extend(undo)
    return where


def remove_all() -> None:
    """Take every injected fault out again."""
    take_back(_undo)


__all__ = ["FaultNotApplicable", "INJECTIONS", "inject", "remove_all"]
