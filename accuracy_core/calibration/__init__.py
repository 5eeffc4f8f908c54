"""Tolerances that are measured before they are used."""

from accuracy_core.calibration.calibrate import Subject, calibrate
from accuracy_core.calibration.document import Calibration, load_calibration
from accuracy_core.calibration.material import Inputs, Source

__all__ = ["Calibration", "Inputs", "Source", "Subject", "calibrate", "load_calibration"]
