"""Sampling settings that a checkpoint would slip in, and the neutral values that are sent instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: A vLLM server fills what a request leaves open from the checkpoint's generation_config.json; sent explicitly, it
#: cannot. (Temperature, stop strings and the length come from the task and are always sent.)
NEUTRAL_SAMPLING: dict[str, float | int] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_IN_CHECKPOINT = {**NEUTRAL_SAMPLING, "temperature": 1.0, "top_k": 0}
_MEANS_OFF = {"top_k": (0, -1, None), "temperature": (1.0, None)}


def overridden_defaults(checkpoint: str | None) -> dict[str, Any]:
    """Settings in the checkpoint's generation_config.json that would have changed the answers, with their values."""
    if not checkpoint:
        return {}
    try:
        config = json.loads((Path(checkpoint) / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    found = {}
    for name, neutral in _IN_CHECKPOINT.items():
        value = config.get(name)
        if value is not None and value != neutral and value not in _MEANS_OFF.get(name, ()):
            found[name] = value
    return found
