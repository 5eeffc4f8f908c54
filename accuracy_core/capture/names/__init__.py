"""From an engine's module names to canonical taps, and back."""

from accuracy_core.capture.names.families import FAMILIES, Family, family_of
from accuracy_core.capture.names.plan import Put, Source, TapPlan, plan_taps

__all__ = ["FAMILIES", "Family", "Put", "Source", "TapPlan", "family_of", "plan_taps"]
