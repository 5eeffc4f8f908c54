"""References as an order in plain JSON values: what a scheduler hands to whichever machine computes them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pydantic import Field

from accuracy_core.goldens.key import golden_key
from accuracy_core.goldens.location import cache_directory
from accuracy_core.goldens.mapping import ReferenceGoldens
from accuracy_core.schemas import Part, fingerprint


class GoldenRef(Part):
    """Where one golden is, instead of its tensors. `location`: the shared store's URI, or the local cache."""

    key: str
    data_bytes: int
    data_sha256: str
    location: str


class GoldenOrder(Part):
    """Arguments of `get_cached_reference_goldens` that can cross machines. Prompts are token ids.

    `cache_dir` and `s3_uri`: None stands for the environment of the machine that computes.
    """

    model_id: str
    model_checkpoint: str
    prompts: list[list[int]]
    output_length: int
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    hf_overrides: dict[str, Any] | None = None
    attn_implementation: str = "auto"
    trust_remote_code: bool = False
    num_threads: int = Field(1, ge=1)
    cache_dir: str | None = None
    s3_uri: str | None = None

    def golden_keys(self) -> list[str]:
        """Keys of the goldens, one per prompt. Reads the checkpoint (once), loads nothing."""
        from accuracy_core.goldens.cached import plan_references

        plan = plan_references(**self.model_dump(exclude={"s3_uri"}))
        return [golden_key(config) for config in plan.key_configs]

    def set_key(self) -> str:
        """One key for all of them."""
        return fingerprint(self.golden_keys())

    def obtain(self) -> ReferenceGoldens:
        """From the cache, or computed and cached."""
        from accuracy_core.goldens.cached import get_cached_reference_goldens

        return get_cached_reference_goldens(**self.model_dump())

    def references(self) -> list[GoldenRef]:
        """Obtain the goldens and say where they are."""
        where = self.s3_uri or str(cache_directory(self.cache_dir))
        return [
            GoldenRef(
                key=golden.key,
                data_bytes=golden.metadata.data_bytes,
                data_sha256=golden.metadata.data_sha256,
                location=where,
            )
            for golden in self.obtain().goldens
        ]

    def is_held(self) -> bool:
        """Whether the local cache or the shared store holds every golden. Their bytes are not looked at."""
        from accuracy_core.goldens.disk import DiskTier
        from accuracy_core.goldens.s3 import s3_tier

        disk, remote = DiskTier(cache_directory(self.cache_dir)), s3_tier(self.s3_uri, lambda _: None)
        return all(
            disk.folder(key).exists() or (remote is not None and remote.holds(key)) for key in self.golden_keys()
        )

    def shards(self, count: int) -> list[GoldenOrder]:
        """At most `count` orders over neighbouring prompts, of sizes that differ by one at most, in order."""
        total, count = len(self.prompts), max(1, min(count, len(self.prompts)))
        bounds = [total * index // count for index in range(count + 1)]
        return [self.model_copy(update={"prompts": self.prompts[start:end]}) for start, end in pairwise(bounds)]
