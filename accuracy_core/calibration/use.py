"""Limits out of a calibration file, for the target that it was made for and no other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from accuracy_core.calibration.document import Calibration
from accuracy_core.calibration.measurement import device_name
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Finding, Platform, Severity, Tolerances
from accuracy_core.schemas.finding import CALIBRATION


@dataclass(frozen=True)
class CalibrationTarget:
    """What limits are wanted for. `device` None: this host cannot tell, another one checks it.

    `dtype` also names what changes the noise of a dtype, such as a quantisation.
    """

    model_fingerprint: str
    dtype: str
    device: str | None = None


@dataclass(frozen=True)
class Limits:
    """Tolerances, and what a report must say about them."""

    tolerances: Tolerances
    findings: tuple[Finding, ...] = ()


def device_of(platform: Platform) -> str:
    """What a calibration calls the device of `platform` on this host. Only CPUs are told apart, by instruction set."""
    return device_name() if platform is Platform.CPU else platform.value


def read_calibration(path: Path) -> Calibration:
    """Raises ConfigurationError for a file that cannot be read or is none."""
    return Calibration.from_json(_text(path), source=str(path))


def mismatches(calibration: Calibration, target: CalibrationTarget) -> list[str]:
    """In what the calibration's target differs: "dtype bfloat16 instead of float16"."""
    pairs = {
        "model": (calibration.model_fingerprint, target.model_fingerprint),
        "dtype": (calibration.dtype, target.dtype),
        "device": (calibration.device, target.device if target.device is not None else calibration.device),
    }
    return [
        f"{name} {_short(made)} instead of {_short(wanted)}" for name, (made, wanted) in pairs.items() if made != wanted
    ]


def load_limits(path: Path, target: CalibrationTarget, *, force: bool = False) -> Limits:
    """Limits of a file: a `calibration.json`, or tolerances without a target (`.toml`, or as JSON).

    Raises ConfigurationError for a file that is not usable, and for a calibration of another model, dtype or device;
    with `force` that one is used all the same, and a finding says so.
    """
    if path.suffix != ".json" or not _is_calibration(_text(path)):
        return Limits(Tolerances.load(path))
    calibration = read_calibration(path)
    other = mismatches(calibration, target)
    if not other:
        return Limits(calibration.tolerances)
    if not force:
        raise ConfigurationError(
            f"calibration {path} was made for another target: {', '.join(other)}",
            fix="calibrate this one with `assay calibrate`, or use the file all the same with --force-calibration",
        )
    finding = Finding(
        check=CALIBRATION,
        severity=Severity.WARNING,
        evidence=f"limits calibrated for another target were used on purpose: {', '.join(other)}",
        fix="calibrate this target with `assay calibrate` before its verdict is relied upon",
    )
    return Limits(calibration.tolerances, (finding,))


def _is_calibration(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False  # whoever reads it as tolerances says what is wrong with it
    return isinstance(document, dict) and "model_fingerprint" in document


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}", fix="check the path of the calibration") from error


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:12] + "…"
