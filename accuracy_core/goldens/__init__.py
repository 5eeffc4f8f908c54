"""Goldens: reference logits of a Hugging Face model, computed once and kept content-addressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accuracy_core.lazy import lazy_names

if TYPE_CHECKING:
    from accuracy_core.goldens.cached import get_cached_reference_goldens as get_cached_reference_goldens
    from accuracy_core.goldens.key import golden_key as golden_key
    from accuracy_core.goldens.location import cache_directory as cache_directory
    from accuracy_core.goldens.mapping import Goldens as Goldens
    from accuracy_core.goldens.mapping import ReferenceGoldens as ReferenceGoldens
    from accuracy_core.goldens.reference import (
        generate_three_way_reference_logits as generate_three_way_reference_logits,
    )
    from accuracy_core.goldens.reference_model import ModelLoader as ModelLoader
    from accuracy_core.goldens.reference_model import load_reference_model as load_reference_model
    from accuracy_core.goldens.store import get_or_compute_goldens as get_or_compute_goldens
    from accuracy_core.goldens.store import get_or_compute_many as get_or_compute_many

#: public name -> module; loaded when used, for a process that only orders goldens needs no torch
_HOME = {
    "Goldens": ".mapping",
    "ModelLoader": ".reference_model",
    "ReferenceGoldens": ".mapping",
    "cache_directory": ".location",
    "generate_three_way_reference_logits": ".reference",
    "get_cached_reference_goldens": ".cached",
    "get_or_compute_goldens": ".store",
    "get_or_compute_many": ".store",
    "golden_key": ".key",
    "load_reference_model": ".reference_model",
}

__all__ = [
    "Goldens",
    "ModelLoader",
    "ReferenceGoldens",
    "cache_directory",
    "generate_three_way_reference_logits",
    "get_cached_reference_goldens",
    "get_or_compute_goldens",
    "get_or_compute_many",
    "golden_key",
    "load_reference_model",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
