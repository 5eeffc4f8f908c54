"""What a remote tier must do. It may fail at any time; it must not lie."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from accuracy_core.goldens.metadata import GoldenMetadata


class RemoteTier(Protocol):
    """A shared store behind the local disk. No method raises: trouble goes to the `warn` that it was made with."""

    def fetch(self, key: str, folder: Path) -> bool:
        """Download both files of an entry into the empty `folder`; True if they are complete. The caller verifies."""
        ...

    def publish(self, metadata: GoldenMetadata, folder: Path) -> GoldenMetadata | None:
        """Upload the entry in `folder`: data first, metadata last. What the store now holds: ours, or that of the
        writer who was first; None when nothing could be stored."""
        ...

    def repair(self, key: str) -> None:
        """The entry that `fetch` delivered is damaged: let the next `publish` replace it."""
        ...

    def lease(self, key: str) -> AbstractContextManager[bool]:
        """Best-effort claim to compute `key`; False while somebody else has it. In doubt True."""
        ...
