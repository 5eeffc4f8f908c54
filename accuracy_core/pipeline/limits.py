"""Limits of a run: the shipped ones, those of a tolerances file, or those of a calibration of its very target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_core.schemas import EngineSpec, PromptParameters

if TYPE_CHECKING:
    from accuracy_core.calibration import Limits


def limits_for(
    parameters: PromptParameters, engine: EngineSpec, model_fingerprint: str, *, engine_here: bool = True
) -> Limits | None:
    """Limits that `parameters` name; None for the shipped ones. `engine_here` False leaves the device unchecked.

    Raises ConfigurationError for a file that is not usable, and for a calibration of another model, dtype or device
    that is not forced.
    """
    if parameters.tolerances is None:
        return None
    from accuracy_core.calibration import CalibrationTarget, load_limits
    from accuracy_core.calibration.use import device_of

    device = device_of(engine.platform) if engine_here else None
    target = CalibrationTarget(model_fingerprint, noise_of(engine), device)
    return load_limits(Path(parameters.tolerances).expanduser(), target, force=parameters.force_calibration)


def noise_of(engine: EngineSpec) -> str:
    """The dtype that a calibration must have been made for, with whatever adds noise of its own to it."""
    from accuracy_core.prompts.goldens import reference_dtype

    added = []
    if engine.quantization:
        added.append(f"{engine.quantization} weights")
    if engine.kv_cache_dtype != "auto":
        added.append(f"{engine.kv_cache_dtype} KV cache")
    if engine.hf_overrides:
        added.append("a changed configuration")
    return " with ".join(filter(None, (reference_dtype(engine), " and ".join(added))))
