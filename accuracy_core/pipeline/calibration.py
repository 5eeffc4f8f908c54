"""A calibration from the order to its files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_core.errors import ConfigurationError
from accuracy_core.pipeline import progress
from accuracy_core.pipeline.identity import code_identity
from accuracy_core.pipeline.versions import versions
from accuracy_core.schemas import fingerprint, write_text

if TYPE_CHECKING:
    from accuracy_core.calibration import Calibration, CalibrationOrder, Inputs, Subject

STAGE = "calibration"


@dataclass(frozen=True)
class PreparedCalibration:
    """What is measured, on what."""

    subject: Subject
    inputs: Inputs

    def key(self) -> str:
        """sha256 over everything that the figures depend on: model, dtype, prompts, device, versions, our own code."""
        from accuracy_core.calibration.measurement import device_name

        inputs = dataclasses.asdict(self.inputs)
        return fingerprint(
            {
                "model": self.subject.fingerprint,
                "name": self.subject.name,
                "dtype": self.subject.dtype,
                "inputs": {**inputs, "prompts": [list(prompt) for prompt in self.inputs.prompts]},
                "device": device_name(),
                "code": code_identity(),
            }
        )


def prepare(order: CalibrationOrder) -> PreparedCalibration:
    """Check an order. Raises ConfigurationError for a model or texts that cannot be used; loads no weights."""
    from accuracy_core.calibration import resolve_order

    return PreparedCalibration(*resolve_order(order))


def measure(prepared: PreparedCalibration) -> Calibration:
    """Measure, with progress events of stage `calibration`. Raises what `calibrate` raises."""
    from accuracy_core.calibration import calibrate

    found = calibrate(
        prepared.subject,
        prepared.inputs,
        versions=versions(),
        progress=lambda done, total, what: progress.report(STAGE, done, total, what),
    )
    progress.report(STAGE, 1, 1, "done")
    return found


def write(calibration: Calibration, output: Path) -> Path:
    """Write `output` and its report beside it. Returns the report's path. Raises ConfigurationError if that fails."""
    from accuracy_core.report.calibration_page import calibration_page

    page = output.with_suffix(".html")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, calibration.to_json())
        write_text(page, calibration_page(calibration))
    except OSError as error:
        raise ConfigurationError(f"cannot write {output}: {error}", fix="choose another --output") from error
    return page
