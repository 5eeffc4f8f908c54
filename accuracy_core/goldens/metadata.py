"""`metadata.json` of a golden: what it was computed from, what the data file must look like, and its own digest."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Self

from pydantic import Field, JsonValue, ValidationError

from accuracy_core.goldens.key import golden_key
from accuracy_core.schemas import Part, Schema, fingerprint

DATA_NAME = "golden.safetensors"
METADATA_NAME = "metadata.json"
MAX_METADATA_BYTES = 64 << 20


class DamagedEntryError(ValueError):
    """An entry is not what it claims to be. Internal to the cache: it is quarantined and computed again."""


class TensorRecord(Part):
    """One tensor of a golden. `stored_dtype` is narrower where every value is exactly representable in it."""

    shape: list[int]
    dtype: str
    stored_dtype: str


class GoldenMetadata(Schema):
    """Human-readable description of an entry. `self_sha256` covers everything else in it."""

    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    key_config: dict[str, JsonValue]
    data_bytes: int = Field(ge=0)
    data_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tensors: dict[str, list[TensorRecord]]
    created: datetime
    compute_s: float = Field(ge=0, description="seconds that the computation took; shared by the prompts of one run")
    provenance: dict[str, JsonValue] = Field(default_factory=dict, description="versions and settings, not in the key")
    self_sha256: str = ""

    @property
    def data_object(self) -> str:
        """Name of the data in an object store: it carries its own digest, so two writers never mix."""
        return f"golden-{self.data_sha256}.safetensors"

    def sealed(self) -> Self:
        return self.model_copy(update={"self_sha256": self._own_digest()})

    def to_bytes(self) -> bytes:
        """Indented ASCII JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=True).encode() + b"\n"

    @classmethod
    def parse(cls, raw: bytes, key: str) -> Self:
        """Metadata of the entry `key`. Raises DamagedEntryError when anything in it does not fit."""
        try:
            content: Any = json.loads(raw)
            metadata = cls.model_validate(content)
        except (ValueError, ValidationError, RecursionError) as error:
            raise DamagedEntryError(f"metadata is unreadable: {type(error).__name__}") from error
        if metadata.key != key:
            raise DamagedEntryError("metadata belongs to another key")
        if metadata.self_sha256 != metadata._own_digest():
            raise DamagedEntryError("metadata was changed: its digest does not fit")
        if golden_key(metadata.key_config) != key:
            raise DamagedEntryError("key_config does not belong to the key")
        return metadata

    def _own_digest(self) -> str:
        content = self.model_dump(mode="json", exclude={"self_sha256"})
        return fingerprint(content)
