"""The nightly matrix: models x devices x tasks from one YAML file, each row checked for itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import RunParameters
from flows.placement import Placement

#: the matrix that is used when a run names none
MATRIX_FILE = "ASSAY_NIGHTLY_MATRIX"
_AXES = ("models", "devices", "tasks")
_SECTIONS = ("defaults", *_AXES, "exclude", "rows")
#: keys of a row that are no parameters of a run
_OWN_KEYS = ("name", "pool")


@dataclass(frozen=True)
class MatrixRow:
    """One run of the nightly. `problem` says why it cannot be one; then `parameters` is None."""

    name: str
    placement: Placement
    parameters: RunParameters | None
    problem: str = ""


def matrix_file(given: str | None) -> Path:
    """`given`, else $ASSAY_NIGHTLY_MATRIX, else the one that comes with Assay."""
    chosen = given or os.environ.get(MATRIX_FILE)
    return Path(chosen).expanduser() if chosen else Path(str(resources.files("deployments") / "nightly.yaml"))


def load_matrix(path: Path) -> list[MatrixRow]:
    """Rows of the file: the product of its axes without `exclude`, then `rows`.

    A row with a mistake is returned with its `problem`. Raises ConfigurationError when the file itself cannot be read,
    has unknown sections, or yields no row.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the nightly matrix {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"the nightly matrix {path} holds no mapping")
    unknown = sorted(map(str, set(data) - set(_SECTIONS)))
    if unknown:
        raise ConfigurationError(
            f"the nightly matrix {path} has unknown sections: {', '.join(unknown)}",
            fix=f"known sections: {', '.join(_SECTIONS)}",
        )
    defaults = data.get("defaults") or {}
    rows = [
        _row("/".join(str(_name(cell)) for cell in cells), [defaults, *cells])
        for cells in _product(data, path)
        if not _excluded(cells, data.get("exclude") or [])
    ]
    rows += [_row(str(_name(cell)), [defaults, cell]) for cell in _list(data, "rows", path)]
    if not rows:
        raise ConfigurationError(f"the nightly matrix {path} has no row", fix="give models, devices and tasks, or rows")
    return _with_unique_names(rows)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def _product(data: Mapping[str, Any], path: Path) -> Iterable[tuple[Any, ...]]:
    axes = [_list(data, axis, path) for axis in _AXES if axis in data]
    return product(*axes) if axes else ()


def _list(data: Mapping[str, Any], section: str, path: Path) -> list[Any]:
    cells = data.get(section) or []
    if not isinstance(cells, list):
        raise ConfigurationError(f"{path}: `{section}` is no list")
    return cells


def _name(cell: Any) -> Any:
    return cell.get("name", "unnamed") if isinstance(cell, dict) else cell


def _excluded(cells: tuple[Any, ...], excluded: list[Any]) -> bool:
    """True when an entry of `exclude` names this combination; an axis that it leaves out matches any."""
    names = {axis.rstrip("s"): _name(cell) for axis, cell in zip(_AXES, cells, strict=False)}
    return any(isinstance(entry, dict) and entry.items() <= names.items() for entry in excluded)


def _row(name: str, parts: list[Any]) -> MatrixRow:
    values: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, dict):
            return MatrixRow(name, Placement(queue="nightly"), None, f"{part!r} is no mapping of parameters")
        values = merged(values, part)
    pool = values.get("pool")
    given = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    try:
        placement = Placement(queue="nightly", **({"device_pool": pool} if pool else {}))
        return MatrixRow(name, placement, RunParameters.model_validate(given))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'row'}: {item['msg']}" for item in error.errors()]
        return MatrixRow(name, Placement(queue="nightly"), None, "; ".join(lines))


def _with_unique_names(rows: list[MatrixRow]) -> list[MatrixRow]:
    seen: dict[str, int] = {}
    result = []
    for row in rows:
        seen[row.name] = count = seen.get(row.name, 0) + 1
        result.append(row if count == 1 else replace(row, name=f"{row.name}#{count}"))
    return result
