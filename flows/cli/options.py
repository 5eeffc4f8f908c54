"""From command-line options to RunParameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import RunParameters
from accuracy_core.schemas.engine_spec import OWN_ARGUMENTS

Model = TypeVar("Model", bound=BaseModel)


def parse_pairs(pairs: list[str], option: str) -> dict[str, Any]:
    """`KEY=VALUE` words to a mapping; VALUE is JSON where it parses as such, else text.

    The split is at the last `=`, for threshold keys may hold one. Raises ConfigurationError naming the word.
    """
    result: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.rpartition("=")
        if not separator or not key:
            raise ConfigurationError(f"{option} {pair!r} is not KEY=VALUE")
        if key in result:
            raise ConfigurationError(f"{option} {key!r} is given twice")
        try:
            result[key] = json.loads(text)
        except json.JSONDecodeError:
            result[key] = text
    return result


def with_engine_arguments(options: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """`options` of the engine with the words of `--engine-arg`: common arguments are fields of EngineSpec, others not.

    Raises ConfigurationError for a word that is no KEY=VALUE, and for an argument that has been given already.
    """
    found: dict[str, Any] = {"engine_args": {}}
    for name, value in parse_pairs(words, "--engine-arg").items():
        field = name.replace("-", "_")
        if field in {**options, **found, **found["engine_args"]}:
            raise ConfigurationError(f"{name} is given twice", fix="leave out its own option, or --engine-arg")
        (found if field in OWN_ARGUMENTS else found["engine_args"])[field] = value
    return {**options, **{key: value for key, value in found.items() if value != {}}}


def load_config(path: Path | None) -> dict[str, Any]:
    """Parameters from a YAML or JSON file. Raises ConfigurationError if it is no mapping."""
    if path is None:
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read the parameters in {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path} holds no mapping of parameters")
    return data


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping. None in `over` means: not given."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        elif value is not None and value != {}:
            merged[key] = value
    return merged


def build_parameters(values: dict[str, Any], *, command: str = "run") -> RunParameters:
    """Validate. Raises ConfigurationError with one readable line per problem."""
    return checked(RunParameters, values, command=command)


def checked(kind: type[Model], values: dict[str, Any], *, command: str) -> Model:
    """`values` as a `kind`. Raises ConfigurationError with one readable line per problem."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, item['loc'])) or 'parameters'}: {item['msg']}" for item in error.errors()]
        raise ConfigurationError(
            "the parameters are not usable:\n" + "\n".join(lines), fix=f"see assay {command} --help"
        ) from error
