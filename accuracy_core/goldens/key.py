"""A golden's key: sha256 over canonical JSON of everything that changes the result, and nothing else."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import canonical_json

#: part of every key: changes whenever the entry's format or the meaning of a key changes
KEY_DOMAIN = "assay-golden-1"
_KEY = re.compile(r"[0-9a-f]{64}")


def golden_key(key_config: Mapping[str, Any]) -> str:
    """Key (64 hex digits) of a configuration of plain JSON values.

    Text is not Unicode-normalised: composed and decomposed forms tokenise differently. 1, 1.0 and true stay apart: that
    costs a second computation at worst, while a wrong hit would serve a foreign golden. Raises ConfigurationError for
    NaN, keys that are no strings, NumPy scalars, tensors and other values that have no canonical text.
    """
    if not isinstance(key_config, Mapping) or not key_config:
        raise ConfigurationError("key_config must be a mapping with at least one entry")
    try:
        text = canonical_json(dict(key_config))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"key_config has no canonical form: {error}",
            fix="use str, int, finite float, bool, None, lists and dicts only",
        ) from error
    return hashlib.sha256(f"{KEY_DOMAIN}\0{text}".encode()).hexdigest()


def check_key(key: str) -> str:
    """`key` itself. Raises ConfigurationError if it is none: keys become file names."""
    if not _KEY.fullmatch(key):
        raise ConfigurationError(f"{key!r} is not the key of a golden", fix="a key has 64 hex digits; see `goldens ls`")
    return key


def loader_identity(loader: Callable[..., Any], version: str = "") -> dict[str, Any]:
    """Name and version of a model loader, for the key.

    A plain function is identified by its qualified name and source text, a `functools.partial` of one by its arguments
    too. What else a callable depends on cannot be seen: `version` is then required. Raises ConfigurationError.
    """
    arguments: list[Any] = []
    function = loader
    while isinstance(function, partial):
        arguments.append([list(function.args), dict(function.keywords)])
        function = function.func
    identity: dict[str, Any] = {"name": f"{getattr(function, '__module__', '')}.{_name_of(function)}"}
    if version:
        return {**identity, "version": version}
    source = _source_digest(function)
    try:
        canonical_json(arguments)
    except (TypeError, ValueError):
        source = None
    if source is None:
        raise ConfigurationError(
            f"model_loader {identity['name']} is not a plain function: a change in it could not be told from its name",
            fix="pass loader_version='…' and change it whenever the loader changes",
        )
    return {**identity, "source": source, **({"arguments": arguments} if arguments else {})}


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _source_digest(function: Any) -> str | None:
    """sha256 of the source of a function that closes over nothing; None where that does not identify it."""
    if not inspect.isfunction(function) or function.__closure__:
        return None
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None
