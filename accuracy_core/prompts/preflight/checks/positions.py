"""Rotary scaling and lengths: does the engine stay within what the model was trained for?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
#: written under either name, depending on the version of transformers that saved the checkpoint
_ROPE = ("rope_parameters", "rope_scaling")


@preflight_check("lengths", "checkpoint", "is max_model_len within the positions that the model was trained for?")
def check_lengths(facts: PreflightFacts) -> Iterator[Finding]:
    trained = trained_length(facts.config)
    wanted = facts.spec.max_model_len or (facts.server.max_model_len if facts.server else None)
    if trained is None:
        yield unmeasured("lengths", "the checkpoint does not say how many positions it knows")
    elif wanted is not None and wanted > trained:
        yield wrong(
            "max_model_len",
            f"max_model_len is {wanted}, the model was trained for {trained} positions: beyond them rotary embeddings "
            "extrapolate and tokens are noise",
            f"use --max-model-len {trained} or less, or a checkpoint with rotary scaling for longer texts",
        )


@preflight_check("rope", "checkpoint", "does the engine use the checkpoint's rotary scaling?")
def check_rope(facts: PreflightFacts) -> Iterator[Finding]:
    """Overrides must not drop or change the scaling; a config must not promise more positions than it scales to."""
    overrides = facts.spec.hf_overrides
    for name in _ROPE:
        if name not in overrides:
            continue
        given = overrides[name] if isinstance(overrides[name], Mapping) else {}
        assert isinstance(given, Mapping)
        own = rope_settings(facts.config)
        changed = {key: (own.get(key), given.get(key)) for key in {*own, *given} if own.get(key) != given.get(key)}
        if changed:
            listed = ", ".join(f"{key}: {was!r} → {now!r}" for key, (was, now) in sorted(changed.items()))
            yield wrong(
                "rope_scaling",
                f"hf_overrides.{name} changes the checkpoint's rotary embedding ({listed})",
                "take it out of hf_overrides, or give all of the checkpoint's settings with it",
            )
    own = rope_settings(facts.config)
    original, factor = own.get("original_max_position_embeddings"), own.get("factor")
    trained = trained_length(facts.config)
    scaled = own.get("rope_type", own.get("type", "default")) != "default"
    if scaled and isinstance(original, int | float) and isinstance(factor, int | float) and trained is not None:
        reach = original * factor
        if trained > reach * 1.001:
            yield wrong(
                "rope_scaling",
                f"config.json allows {trained} positions, its rotary scaling reaches {original} × {factor:g} = "
                f"{reach:g} only",
                "restore rope_scaling from the model's publisher, or lower max_position_embeddings",
            )
    if scaled and factor is None and not {"short_factor", "long_factor"} & set(own):
        yield wrong(
            "rope_scaling",
            f"the rotary scaling {own.get('rope_type', own.get('type'))!r} has no factor",
            "restore rope_scaling from the model's publisher",
        )


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings of a config, whichever way they are written; {} without any.

    Per-layer-type settings (Gemma 3) are flattened with the type as a prefix.
    """
    found: dict[str, Any] = {}
    for name in _ROPE:
        value = config.get(name)
        if not isinstance(value, Mapping):
            continue
        for key, item in value.items():
            if isinstance(item, Mapping):
                found.update({f"{key}.{inner}": own for inner, own in item.items()})
            elif item is not None:
                found[key] = item
    if "rope_theta" not in found and config.get("rope_theta") is not None:
        found["rope_theta"] = config["rope_theta"]
    return found


def trained_length(config: Mapping[str, Any]) -> int | None:
    return next((int(config[name]) for name in _LENGTHS if isinstance(config.get(name), int)), None)
