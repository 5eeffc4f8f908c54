"""What a comparison needs to know before it looks at logits."""

from __future__ import annotations

from dataclasses import dataclass

from accuracy_core.numerics.precision import mantissa_bits
from accuracy_core.numerics.tolerance_map import TopK, parse_tolerance_map
from accuracy_core.schemas import Tolerances

_CHUNK_ELEMENTS = 1 << 19  # a chunk's working set stays within a CPU's last-level cache


@dataclass(frozen=True)
class Plan:
    """Settings of one run. `vocab` is the number of ids of the tokenizer: columns beyond it are padding."""

    slices: tuple[TopK, ...]
    bits: int
    vocab: int
    three_way: bool
    bc_min_samples: int
    chunk_rows: int

    @classmethod
    def make(
        cls, tolerances: Tolerances, *, vocab: int, three_way: bool, target_dtype: str, chunk_rows: int | None = None
    ) -> Plan:
        """Parse and check `tolerances`. Raises ConfigurationError for a bad tolerance map or dtype."""
        return cls(
            slices=parse_tolerance_map(tolerances.top_k),
            bits=mantissa_bits(target_dtype),
            vocab=vocab,
            three_way=three_way,
            bc_min_samples=tolerances.aggregate.bc_min_samples,
            chunk_rows=chunk_rows or max(1, _CHUNK_ELEMENTS // vocab),
        )
