"""The tasks that come with the package."""

from __future__ import annotations

from pathlib import Path


def bundled_tasks_dir() -> Path:
    """Folder of the bundled task files; an `include_path` for lm-eval."""
    return Path(__file__).parent / "tasks"
