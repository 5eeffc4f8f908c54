"""The list of files of a run directory on S3: what it names, with these bytes, is the run."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import Field

from accuracy_core.schemas import Part, Schema


class Listed(Part):
    """One file."""

    size: int = Field(ge=0)
    sha256: str


class FileList(Schema):
    """`.assay-files.json`. Keys of `files` are relative to the run directory, with slashes."""

    files: dict[str, Listed] = Field(default_factory=dict)


def inside(path: str) -> bool:
    """Whether `path` stays below the folder it is taken relative to; a bucket may hold anything."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and not path.endswith("/")
