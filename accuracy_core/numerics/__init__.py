"""Numerical comparison of logits: errors, ratios, guards, routes, verdict. Imports torch and the standard library
only.
"""

from accuracy_core.numerics.bhattacharyya import bhattacharyya
from accuracy_core.numerics.defaults import DEFAULT_TOLERANCE_MAP, default_tolerances
from accuracy_core.numerics.inputs import PromptLogits
from accuracy_core.numerics.judge import Judgement, judge
from accuracy_core.numerics.kl import kl_divergence
from accuracy_core.numerics.norms import error_ratio, l2_floor, linf_floor
from accuracy_core.numerics.phase import Location, locate
from accuracy_core.numerics.plan import Plan
from accuracy_core.numerics.precision import ulp
from accuracy_core.numerics.stream import RunStats, stream
from accuracy_core.numerics.tolerance_map import parse_tolerance_map
from accuracy_core.numerics.verdict import documented_rule, verdict

__all__ = [
    "DEFAULT_TOLERANCE_MAP", "Judgement", "Location", "Plan", "PromptLogits", "RunStats", "bhattacharyya",
    "default_tolerances", "documented_rule", "error_ratio", "judge", "kl_divergence", "l2_floor", "linf_floor",
    "locate", "parse_tolerance_map", "stream", "ulp", "verdict",
]  # fmt: skip
