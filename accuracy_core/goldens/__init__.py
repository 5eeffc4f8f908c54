"""Goldens: reference logits of a Hugging Face model, computed once and kept content-addressed."""

from __future__ import annotations

from accuracy_core.goldens.cached import get_cached_reference_goldens
from accuracy_core.goldens.key import golden_key
from accuracy_core.goldens.location import cache_directory
from accuracy_core.goldens.mapping import Goldens, ReferenceGoldens
from accuracy_core.goldens.reference import generate_three_way_reference_logits
from accuracy_core.goldens.reference_model import ModelLoader, load_reference_model
from accuracy_core.goldens.store import get_or_compute_goldens, get_or_compute_many

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
