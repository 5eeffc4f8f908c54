"""What can be refused before anything expensive: unknown tasks, thresholds on scores that will not exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.catalogue import Catalogue
from accuracy_core.evals.thresholds import PROPORTIONS_OF_FILES, parse_rule, require_possible, split_key


def check_tasks(tasks: Sequence[str], include_path: str | Path | None = None) -> Catalogue:
    """Raises ConfigurationError for an empty list, a name given twice, or an unknown name (with near ones)."""
    if isinstance(tasks, str):
        raise ConfigurationError(f"tasks must be a list of names, got the text {tasks!r}", fix=f"tasks=[{tasks!r}]")
    names = list(tasks)
    if not names:
        raise ConfigurationError("no task to evaluate", fix="name at least one, e.g. assay_suite")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"task {twice[0]!r} is named twice", fix="name each task once")
    catalogue = Catalogue(include_path)
    for name in names:
        if catalogue.get(name) is None:
            near = difflib.get_close_matches(name, catalogue.names(), n=5, cutoff=0.5)
            hint = f"did you mean {', '.join(repr(item) for item in near)}?" if near else "see `lm-eval ls tasks`"
            raise ConfigurationError(
                f"unknown task {name!r}", fix=f"{hint} A folder of own task files goes into include_path."
            )
    return catalogue


def check_thresholds(
    thresholds: Mapping[str, Any], tasks: Sequence[str], include_path: str | Path | None = None
) -> None:
    """Find a threshold that no score of these tasks can meet, without running them.

    Raises ConfigurationError for a key that no score will have, naming those that will exist, and for a percentage
    where scores are proportions. Tasks whose metrics the files do not tell are trusted.
    """
    catalogue = check_tasks(tasks, include_path)
    rows: dict[str, list[str] | None] = {}
    for name in tasks:
        rows.update(catalogue.rows(name))
    known = [f"{task}/{key}" for task, keys in rows.items() for key in keys or []]
    for given, value in thresholds.items():
        rule = parse_rule(given, value)
        task, key = split_key(given)
        if task is None:
            fits = [f"{name}/{key}" for name, keys in rows.items() if keys is not None and key in keys]
            if len(fits) > 1:
                raise _unfit(given, f"fits {len(fits)} scores", fits)
            if not fits and all(keys is not None for keys in rows.values()):
                raise _unfit(given, "names no score of these tasks", known)
        elif task not in rows:
            if all(keys is not None for keys in rows.values()):
                raise _unfit(given, "names no task or group of this run", known)
        elif (keys := rows[task]) is not None and key not in keys:
            raise _unfit(given, f"names no score of {task}", [f"{task}/{item}" for item in keys] or known)
        if any(name.endswith(f"/{key}") and task in (None, name.removesuffix(f"/{key}")) for name in known):
            require_possible(given, rule, PROPORTIONS_OF_FILES)


def _unfit(given: str, problem: str, candidates: list[str]) -> ConfigurationError:
    near = difflib.get_close_matches(given, candidates, n=12, cutoff=0)
    shown = near if len(candidates) > len(near) else candidates
    more = f" and {len(candidates) - len(shown)} more" if len(candidates) > len(shown) else ""
    return ConfigurationError(f"threshold {given!r} {problem}", fix=f"there are: {', '.join(shown) or 'none'}{more}")
