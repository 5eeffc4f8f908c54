"""Tolerances that are measured before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accuracy_core.lazy import lazy_names

if TYPE_CHECKING:
    from accuracy_core.calibration.document import Calibration as Calibration
    from accuracy_core.calibration.material import Inputs as Inputs
    from accuracy_core.calibration.material import Source as Source
    from accuracy_core.calibration.measurement import Subject as Subject
    from accuracy_core.calibration.measurement import calibrate as calibrate
    from accuracy_core.calibration.order import CalibrationOrder as CalibrationOrder
    from accuracy_core.calibration.subject import resolve_order as resolve_order
    from accuracy_core.calibration.use import CalibrationTarget as CalibrationTarget
    from accuracy_core.calibration.use import Limits as Limits
    from accuracy_core.calibration.use import load_limits as load_limits
    from accuracy_core.calibration.use import read_calibration as read_calibration

#: public name -> module; loaded when used, for most of them need torch
_HOME = {
    "Calibration": ".document", "CalibrationOrder": ".order", "CalibrationTarget": ".use", "Inputs": ".material",
    "Limits": ".use", "Source": ".material", "Subject": ".measurement", "calibrate": ".measurement",
    "load_limits": ".use", "read_calibration": ".use", "resolve_order": ".subject",
}  # fmt: skip

__all__ = ["Calibration", "CalibrationOrder", "CalibrationTarget", "Inputs", "Limits", "Source", "Subject", "calibrate",
           "load_limits", "read_calibration", "resolve_order"]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, _HOME)
