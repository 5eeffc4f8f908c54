"""What to ask an engine for, and how canonical taps come out of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accuracy_core.capture.names.families import Family, Part, Place, family_of
from accuracy_core.capture.patterns import select_taps
from accuracy_core.capture.taps import RawTap
from accuracy_core.errors import ConfigurationError, InputMismatchError
from accuracy_core.schemas.replay import Replacement

#: canonical tap that every engine records anyway, as the logits of its rows
LM_HEAD = "lm_head"
_NUMBERED = re.compile(r"\.\d+$")


@dataclass(frozen=True)
class Put:
    """A raw tap to put rows at: columns [start, stop) of it (None: all), rows times `scale` (0: zeros)."""

    raw: str
    columns: tuple[int, int] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Source:
    """Columns [start, stop) (None: all) of one raw tap."""

    raw: str
    columns: tuple[int, int] | None = None
    puts: tuple[Put, ...] = ()


@dataclass(frozen=True)
class TapPlan:
    """Canonical taps of an engine and where they come from.

    `raw`: raw taps to ask for, each once. `missing`: canonical tap -> why this engine does not have it.
    """

    sources: Mapping[str, Source]
    missing: Mapping[str, str] = field(default_factory=dict)
    logits: bool = False

    @property
    def raw(self) -> list[str]:
        return list(dict.fromkeys(source.raw for source in self.sources.values()))

    @property
    def taps(self) -> list[str]:
        """Canonical taps that come out, in the order of the map."""
        return [*self.sources, *([LM_HEAD] if self.logits else [])]

    def only(self, taps: Collection[str]) -> TapPlan:
        """The same for some canonical taps. Those that the map does not know are in its `missing`."""
        chosen = {tap: source for tap, source in self.sources.items() if tap in taps}
        logits = self.logits and LM_HEAD in taps
        missing = {
            tap: self.missing.get(tap, "the engine has no such module")
            for tap in taps
            if tap not in chosen and not (tap == LM_HEAD and logits)
        }
        return TapPlan(chosen, missing, logits)

    def assemble(self, raw: Mapping[str, torch.Tensor], logits: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Canonical tap -> (positions, features) out of raw tap -> (positions, features).

        A raw tap that is not there leaves its canonical taps out. `logits` (tokens, vocab) become `lm_head`, whose rows
        are those of the last positions. Raises InputMismatchError, naming both widths, where a fused output is not
        as wide as the model's configuration says.
        """
        assembled = {}
        for tap, source in self.sources.items():
            if source.raw not in raw:
                continue
            rows = raw[source.raw]
            if source.columns is not None:
                start, stop = source.columns
                if rows.ndim != 2 or rows.shape[1] < stop:
                    raise InputMismatchError(
                        f"{source.raw} has shape {tuple(rows.shape)}; {tap} is its columns {start}:{stop}"
                    )
                rows = rows[:, start:stop]
            assembled[tap] = rows
        if self.logits and logits is not None:
            assembled[LM_HEAD] = logits
        return assembled

    def replacement(self, tap: str) -> list[Put]:
        """Where rows of a canonical tap are put in this engine; empty where that is not possible."""
        source = self.sources.get(tap)
        return list(source.puts) if source else []

    def write_replacements(
        self, values: Mapping[str, torch.Tensor], file: Path, first_row: int = 0
    ) -> list[Replacement]:
        """Write canonical rows (rows, features) to a safetensors file, and say where they go in this engine.

        Raises ConfigurationError for a tap that cannot be replaced.
        """
        from safetensors.torch import save_file

        tensors, replacements = {}, []
        for tap, rows in values.items():
            puts = self.replacement(tap)
            if not puts:
                raise ConfigurationError(f"{tap} cannot be replaced in this engine", fix="choose another module")
            for number, put in enumerate(puts):
                name = f"{tap}/{number}"
                tensors[name] = (rows if put.scale == 1.0 else rows * put.scale).contiguous().clone()
                replacements.append(
                    Replacement(tap=put.raw, file=str(file), tensor=name, first_row=first_row, columns=put.columns)
                )
        save_file(tensors, str(file))
        return replacements


def plan_taps(
    module_names: Mapping[str, str],
    config: Mapping[str, Any],
    patterns: Sequence[str] = (),
    *,
    tensor_parallel_size: int = 1,
    canonical: bool = False,
) -> TapPlan:
    """Which raw taps give the canonical taps that `patterns` name.

    `module_names`: the engine's modules (name -> class). `config`: the model's configuration as in `config.json`.
    `canonical`: the engine speaks canonical taps itself, as `TAP:out0` (the transformers engine).
    `tensor_parallel_size`: fused outputs of one rank are split by that rank's heads.

    Without a map for the model's family only modules that have Hugging Face's name are used; the rest is in `missing`.
    Raises ConfigurationError for a pattern that matches nothing.
    """
    if canonical:
        taps = list(module_names)
        known: dict[str, Source] = {tap: _identity(tap) for tap in taps if tap != LM_HEAD}
        chosen = select_taps(patterns, [*known, LM_HEAD])
        return TapPlan({tap: known[tap] for tap in chosen if tap in known}, logits=LM_HEAD in chosen)
    text_config = config.get("text_config") or config
    family = family_of(text_config)
    if family is None:
        return _exact(module_names, text_config, patterns)
    widths = _widths(text_config, tensor_parallel_size)
    known, missing = {}, {}
    for tap, place in _instantiate(family, _layers(text_config)):
        source = _source(place, widths, text_config)
        if source is None:
            missing[tap] = f"{place.part} columns of {place.raw} are not known for this model"
        elif RawTap.parse(source.raw).module not in module_names:
            missing[tap] = f"the engine has no module {RawTap.parse(source.raw).module}"
        else:
            known[tap] = source
    # a family with dense and sparse layers has both sets of names in its map
    sparse = {tap.removesuffix(".experts") for tap in known if tap.endswith(".mlp.experts")}
    missing = {tap: why for tap, why in missing.items() if tap not in known and tap.rpartition(".")[0] not in sparse}
    chosen = select_taps(patterns, [*known, *missing, LM_HEAD])
    return TapPlan(
        {tap: known[tap] for tap in chosen if tap in known},
        {tap: missing[tap] for tap in chosen if tap in missing},
        LM_HEAD in chosen,
    )


def _identity(tap: str) -> Source:
    raw = f"{tap}:out0"
    return Source(raw, puts=(Put(raw),))


def _exact(module_names: Mapping[str, str], config: Mapping[str, Any], patterns: Sequence[str]) -> TapPlan:
    """Modules by their own names. Which of them are Hugging Face's is found out when both sides are compared."""
    why = f"there is no map of names for model type {config.get('model_type')!r}"
    # a layer itself returns (what the MLP made, residual stream) in vLLM, their sum in Hugging Face
    known = {name: _identity(name) for name in module_names if name != LM_HEAD and not _NUMBERED.search(name)}
    chosen = select_taps(patterns, [*known, LM_HEAD])
    virtual = {
        f"{name}.{kind}": why
        for name in known
        if name.endswith("self_attn") and any(other.startswith(f"{name}.") for other in known)
        for kind in ("query", "key", "value", "attn")
        if f"{name}.{kind}" not in known
    }
    return TapPlan({tap: known[tap] for tap in chosen if tap in known}, virtual, LM_HEAD in chosen)


def _layers(config: Mapping[str, Any]) -> int:
    return int(config.get("num_hidden_layers") or 0)


def _instantiate(family: Family, layers: int) -> Iterable[tuple[str, Place]]:
    for tap, place in family.model.items():
        if tap != "model.norm":
            yield tap, place
    for layer in range(layers):
        after = f"model.layers.{layer + 1}.input_layernorm" if layer + 1 < layers else "model.norm"

        def fill(template: str, layer: int = layer, after: str = after) -> str:
            return template.replace("{L}", str(layer)).replace("{N}", after)

        for tap, place in family.layer.items():
            yield (
                f"model.layers.{layer}" + (f".{tap}" if tap else ""),
                Place(
                    fill(place.raw),
                    place.part,
                    tuple(map(fill, place.put)),
                    tuple(map(fill, place.zero)),
                    place.put_scale,
                ),
            )
    if "model.norm" in family.model:
        yield "model.norm", family.model["model.norm"]


def _widths(config: Mapping[str, Any], ranks: int) -> dict[Part, tuple[int, int]]:
    """Columns of each part of a fused output, of one rank."""
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    hidden = int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    query, key = heads // ranks * head_dim, max(1, kv_heads // ranks) * head_dim
    columns: dict[Part, tuple[int, int]] = {
        "q": (0, query),
        "k": (query, query + key),
        "v": (query + key, query + 2 * key),
        "hidden": (0, hidden),
    }
    if config.get("intermediate_size"):
        width = int(config["intermediate_size"]) // ranks
        columns |= {"gate": (0, width), "up": (width, 2 * width)}
    return columns


def _source(place: Place, widths: Mapping[Part, tuple[int, int]], config: Mapping[str, Any]) -> Source | None:
    if place.part and place.part not in widths:
        return None
    columns = widths[place.part] if place.part else None
    scale = 1.0
    if place.put_scale == "embedding_normalizer":
        scale = float(config["hidden_size"]) ** -0.5
    puts = [Put(raw, columns, scale) for raw in place.put or (place.raw,)]
    puts += [Put(raw, columns, 0.0) for raw in place.zero]
    return Source(place.raw, columns, tuple(puts))
