"""What a shared tier must do. It may fail at any time; it must not lie."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from accuracy_core.goldens.lease import Leases
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

    def condemn(self, key: str) -> None:
        """What `fetch` delivered is damaged: let the next `publish` of `key` replace it."""
        ...

    def holds(self, key: str) -> bool:
        """Whether a complete entry is there; its bytes are not looked at."""
        ...

    def keys(self) -> list[str] | None:
        """Keys of all committed entries; None when they cannot be listed."""
        ...

    def leases(self) -> Leases | None:
        """Leases on the store's keys, to be entered; None where there are none to be had."""
        ...
