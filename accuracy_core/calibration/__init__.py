"""Tolerances that are measured before they are used."""

from accuracy_core.calibration.calibrate import Subject, calibrate
from accuracy_core.calibration.document import Calibration
from accuracy_core.calibration.material import Inputs, Source
from accuracy_core.calibration.order import CalibrationOrder
from accuracy_core.calibration.subject import resolve_order
from accuracy_core.calibration.use import CalibrationTarget, Limits, load_limits, read_calibration

__all__ = [
    "Calibration",
    "CalibrationOrder",
    "CalibrationTarget",
    "Inputs",
    "Limits",
    "Source",
    "Subject",
    "calibrate",
    "load_limits",
    "read_calibration",
    "resolve_order",
]
