"""Room for captures, estimated before anything is computed."""

from __future__ import annotations

import shutil
from pathlib import Path

from accuracy_core.errors import ConfigurationError

#: share of the free space that may be taken
_SHARE = 0.9


def check_room(needs: list[tuple[str, Path, int]], fix: str) -> None:
    """Raise ConfigurationError, with the figures, when (what, folder, bytes) do not fit; folders on one disk add up."""
    taken: dict[int, int] = {}
    for what, folder, size in needs:
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        device = place.stat().st_dev
        taken[device] = taken.get(device, 0) + size
        free = shutil.disk_usage(place).free
        if taken[device] > _SHARE * free:
            raise ConfigurationError(
                f"{what} would take {size / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free"
                + (f" and {taken[device] / 1e9:.1f} GB are needed in all" if taken[device] > size else ""),
                fix=fix,
            )
