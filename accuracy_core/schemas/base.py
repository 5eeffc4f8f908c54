"""Base of the models that parts share on disk: frozen, versioned, strict JSON that keeps NaN and infinities."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from accuracy_core.errors import ConfigurationError


class Part(BaseModel):
    """A piece of a schema. Unknown fields are refused: a typo must not pass silently.

    Non-finite floats are written as the strings "NaN", "Infinity" and "-Infinity", since JSON has no numbers for them,
    and are read back as floats.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())


class Schema(Part):
    """A document on disk. `schema_version` is written into it; a newer one than we know is refused by name."""

    SCHEMA_VERSION: ClassVar[int] = 1
    schema_version: int = 0

    @model_validator(mode="before")
    @classmethod
    def _known_version(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        version = data.get("schema_version", cls.SCHEMA_VERSION)
        if not isinstance(version, int) or version < 1 or version > cls.SCHEMA_VERSION:
            raise ValueError(
                f"{cls.__name__} has schema version {version!r}, this Assay knows 1 to {cls.SCHEMA_VERSION}: "
                "use the version that wrote it"
            )
        return {**data, "schema_version": cls.SCHEMA_VERSION}

    def to_json(self) -> str:
        """Indented JSON text; non-finite floats as strings."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "") -> Self:
        """Parse `text`. Raises ConfigurationError naming `source` if it is no such document."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            where = f" in {source}" if source else ""
            raise ConfigurationError(
                f"not a valid {cls.__name__}{where}: {error}",
                fix="the file is damaged or was written by another version; rerun the stage that writes it",
            ) from error


def canonical_json(value: Any) -> str:
    """Strict canonical JSON: sorted keys, ASCII, no NaN, string keys only. Raises TypeError or ValueError otherwise."""
    _only_string_keys(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _only_string_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"canonical JSON takes string keys only, got {key!r} ({type(key).__name__})")
            _only_string_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _only_string_keys(item)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise TypeError(f"canonical JSON takes plain JSON types only, got {type(value).__name__}")


def fingerprint(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
