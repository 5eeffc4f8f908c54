"""Proof that faults are found: every fault on every architecture that can have it, and clean runs beside them."""

from accuracy_core.selftest.document import CaseResult, SelftestReport
from accuracy_core.selftest.plan import Case, Plan, make_plan
from accuracy_core.selftest.run import run_selftest

__all__ = ["Case", "CaseResult", "Plan", "SelftestReport", "make_plan", "run_selftest"]
