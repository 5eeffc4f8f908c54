"""Numerical faults that can be injected into a target, to prove that they are found."""

from accuracy_core.faults.fault import Fault, FaultLevel, ResolvedFault
from accuracy_core.faults.registry import FAULTS, FaultRegistry, resolve_fault

__all__ = ["FAULTS", "Fault", "FaultLevel", "FaultRegistry", "ResolvedFault", "resolve_fault"]
