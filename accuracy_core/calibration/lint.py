"""Linter of fixtures: files of tensors that a tolerance will be measured on."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from accuracy_core.calibration.span_audit import representable, span_audit
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Finding, Severity

#: names of tensors that hold scales, and of second moments that must stay away from zero
_SCALE = re.compile(r"(^|[._])(global_)?scale(_inv)?$|_scales?$")
_SECOND_MOMENT = re.compile(r"(^|[._])(v|v_code|v_absmax|exp_avg_sq|second_moment)$")
#: an absmax of a second moment below this share of the typical one makes an optimizer's denominator collapse
LEAST_SECOND_MOMENT = 1e-6


def lint_fixture(path: Path) -> list[Finding]:
    """Problems of every tensor in a safetensors file: span, energy, scales that are not exact, underflow.

    Raises ConfigurationError for a file that is none.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"{path} is not a safetensors file: {error}", fix="save the fixture as one") from error
    if not tensors:
        raise ConfigurationError(f"{path} holds no tensor")
    return [finding for name, tensor in sorted(tensors.items()) for finding in lint_tensor(name, tensor)]


def lint_tensor(name: str, tensor: torch.Tensor) -> list[Finding]:
    """Findings about one tensor; none for integers and packed bytes, which have no span."""
    if not tensor.is_floating_point():
        return []
    if tensor.numel() and not bool(torch.isfinite(tensor.float()).all()):
        return [_wrong("finite", f"{name} holds NaN or infinity", "check the generator")]
    found = []
    if _SCALE.search(name):
        return _scale(name, tensor)
    if _SECOND_MOMENT.search(name):
        found += _second_moment(name, tensor)
    if tensor.numel() > 1:
        audit = span_audit(tensor)
        found += [
            _wrong("energy", f"{name}: {problem}", "inject outliers at a fixed count and magnitude, not from a tail")
            for problem in audit.problems
        ]
        if audit.underflow:
            found.append(
                _wrong(
                    "underflow",
                    f"{name}: {audit.underflow} of {audit.elements} are below bfloat16's smallest normal number",
                    "clamp the generator away from zero",
                )
            )
    return found


def _scale(name: str, scale: torch.Tensor) -> list[Finding]:
    """Only a scale for the whole tensor is checked: errors of many scales average out."""
    if bool((scale <= 0).any()):
        return [_wrong("scale", f"{name} has a scale that is zero or negative", "check the quantiser")]
    if scale.numel() == 1 and not representable(scale):
        return [
            _wrong(
                "scale",
                f"{name} = {float(scale):.9g} is not exact in bfloat16 and float16: its rounding error multiplies the "
                "whole output, by another amount for every seed",
                "round it to bfloat16 when the fixture is made",
            )
        ]
    return []


def _second_moment(name: str, moment: torch.Tensor) -> list[Finding]:
    values = moment.float().abs().flatten()
    typical = float(values.median())
    low = int((values < LEAST_SECOND_MOMENT * typical).sum())
    if not low:
        return []
    return [
        _wrong(
            "second_moment",
            f"{name}: {low} of {len(values)} values lie below {LEAST_SECOND_MOMENT:g} of the median: the denominator "
            "collapses there and single updates are ten thousand times the typical one",
            "keep the second moment's absmax away from zero",
        )
    ]


def _wrong(check: str, evidence: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.ERROR, evidence=evidence, fix=fix)
