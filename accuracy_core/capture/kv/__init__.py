"""KV caches: reconstruction from blocks and ranks, three-way comparison, patterns."""

from accuracy_core.capture.kv.blocks import ContiguousKv, reconstruct_contiguous_kv
from accuracy_core.capture.kv.compare import compare_kv_caches
from accuracy_core.capture.kv.envelope import BaseEnvelope
from accuracy_core.capture.kv.ranks import combine_ranks
from accuracy_core.capture.kv.reference import KvCapture
from accuracy_core.capture.kv.sides import KvSides, LayerKv

__all__ = [
    "BaseEnvelope", "ContiguousKv", "KvCapture", "KvSides", "LayerKv", "combine_ranks", "compare_kv_caches",
    "reconstruct_contiguous_kv",
]  # fmt: skip
