"""Copies of the bundled checkpoint that a test may damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from accuracy_core.models import embedded_model


class Checkpoint:
    """An editable copy of the bundled model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self, **changes: Any) -> None:
        """Set keys of config.json; None removes one."""
        self._edit("config.json", changes)

    def generation(self, **changes: Any) -> None:
        self._edit("generation_config.json", changes)

    def weights(self, change: Callable[[dict[str, Any]], None]) -> None:
        tensors = load_file(self.folder / "model.safetensors")
        change(tensors)
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})

    def _edit(self, name: str, changes: dict[str, Any]) -> None:
        path = self.folder / name
        data = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    folder = tmp_path / "model"
    shutil.copytree(embedded_model(), folder)
    return Checkpoint(folder)
