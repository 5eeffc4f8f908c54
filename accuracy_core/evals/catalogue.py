"""Which tasks exist and which scores they will have, read from the task files alone: no lm-eval import, no data.

Knows the bundled tasks, a directory of the user's, and lm-eval's own (found by a text scan, parsed when asked for).
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.bundled import bundled_tasks_dir

_NAME_LINE = re.compile(rb"^[\"']?(task|group|tag)[\"']?:[ \t]*(.*)$", re.MULTILINE)
#: metrics that lm-eval takes when a task file has no metric_list
_DEFAULT_METRICS = {
    "multiple_choice": ["acc", "acc_norm"],
    "loglikelihood": ["perplexity", "acc"],
    "loglikelihood_rolling": ["word_perplexity", "byte_perplexity", "bits_per_byte"],
    "generate_until": ["exact_match"],
}


@dataclass
class Entry:
    """A task, a group (with `children` by name) or a tag (a group without a row in the results).

    `scores` are `metric,filter` keys, None when the files do not tell them.
    """

    name: str
    kind: Literal["task", "group", "tag"]
    path: Path
    children: list[str] = field(default_factory=list)
    scores: list[str] | None = None
    output_type: str = ""
    tags: list[str] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_constructor("!function", lambda loader, node: f"!function {node.value}")


class Catalogue:
    """Tasks by name. `include_path` overrides bundled tasks, which override lm-eval's, as lm-eval does."""

    def __init__(self, include_path: str | Path | None = None) -> None:
        self._known: dict[str, Entry] = {}
        for folder in [bundled_tasks_dir()] + ([Path(include_path)] if include_path else []):
            if not folder.is_dir():
                raise ConfigurationError(
                    f"include_path {str(folder)!r} is no directory", fix="give a folder of task YAML files"
                )
            for path in sorted(folder.glob("**/*.yaml")):
                self._known.update(_parse(path))
        for entry in list(self._known.values()):
            self._add_tags(entry)
        self._own = frozenset(self._known)

    def names(self) -> list[str]:
        """Every known name."""
        return sorted(self._own | set(_lm_eval_files()))

    def folders(self, names: Iterable[str]) -> list[Path] | None:
        """Folders that hold lm-eval's files of each name and all its children: [] when own files are enough.

        None when lm-eval has to look through all its files: for a child that cannot be found, and for tags, whose
        members may be anywhere.
        """
        roots = set()
        for name in names:
            paths = self._files(name)
            if paths is None:
                return None
            if paths:
                roots.add(Path(os.path.commonpath([path.parent for path in paths])))
        return sorted(
            root for root in roots if not any(root != other and root.is_relative_to(other) for other in roots)
        )

    def _files(self, name: str) -> list[Path] | None:
        """lm-eval's files of a name and everything below it; None when they cannot be told."""
        entry = self.get(name)
        if entry is None or entry.kind == "tag":
            return None
        found = [] if name in self._own else [entry.path]
        for child in entry.children:
            below = self._files(child)
            if below is None:
                return None
            found += below
        return found

    def get(self, name: str) -> Entry | None:
        """The entry, or None for an unknown name."""
        if name not in self._known:
            hits = _lm_eval_files().get(name, [])
            self._parse_all(hits, name)
            if name in self._known and self._known[name].kind == "tag":
                # a tag is inherited by files that include one with it, and those lie beside it
                self._parse_all(sorted({near for path in hits for near in path.parent.glob("*.yaml")}), name)
        return self._known.get(name)

    def _parse_all(self, paths: list[Path], tag: str) -> None:
        for path in paths:
            for key, entry in _parse(path).items():
                self._known.setdefault(key, entry)
                self._add_tags(self._known[key], only=tag)

    def _add_tags(self, entry: Entry, only: str | None = None) -> None:
        for tag in entry.tags:
            if only in (None, tag):
                known = self._known.setdefault(tag, Entry(tag, "tag", entry.path, scores=[]))
                if known.kind == "tag" and entry.name not in known.children:
                    known.children.append(entry.name)

    def leaves(self, name: str) -> list[str]:
        """Names of the tasks below a group (or the task itself)."""
        entry = self.get(name)
        if entry is None or entry.kind == "task":
            return [name]
        return [leaf for child in entry.children for leaf in self.leaves(child)]

    def rows(self, name: str) -> dict[str, list[str] | None]:
        """Name -> score keys of a task or group and everything below it. None: the files do not tell."""
        entry = self.get(name)
        if entry is None:
            return {name: None}
        below: dict[str, list[str] | None] = {}
        for child in entry.children:
            below.update(self.rows(child))
        if entry.kind == "tag":
            return below
        own = entry.scores
        if entry.kind == "group" and own is not None:
            own = self._group_scores(entry, own)
        return {name: own, **below}

    def _group_scores(self, entry: Entry, wanted: list[str]) -> list[str] | None:
        """A group's aggregate list names metrics; without a filter list, it takes the filters that its leaves have."""
        leaf_scores = [leaf.scores for name in self.leaves(entry.name) if (leaf := self.get(name)) is not None]
        if any(scores is None for scores in leaf_scores):
            return None
        keys = [key for scores in leaf_scores for key in scores or []]
        found: list[str] = []
        for item in wanted:
            metric, _, name = item.partition(",")
            found += [item] if name else [key for key in keys if key.split(",")[0] == metric]
        return list(dict.fromkeys(found))


@lru_cache(maxsize=1)
def _lm_eval_files() -> dict[str, list[Path]]:
    """Name -> files that mention it as task, group or tag. A text scan: parsing 14,000 files takes 13 s."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        return {}
    files: dict[str, list[Path]] = {}
    for path in sorted((Path(next(iter(spec.submodule_search_locations))) / "tasks").glob("**/*.yaml")):
        text = path.read_bytes()
        for kind, value in _NAME_LINE.findall(text):
            for name in _names(kind, value, text):
                files.setdefault(name, []).append(path)
    return files


def _names(kind: bytes, value: bytes, text: bytes) -> list[str]:
    value = value.split(b" #")[0].strip()
    if value and not value.startswith(b"["):
        return [value.strip(b"\"'").decode("utf-8", "replace")]
    if kind != b"tag":
        return []  # `task:` with a list: a group's children
    listed = re.search(rb"^[\"']?tag[\"']?:[ \t]*\n((?:[ \t]*-[^\n]*\n?)+)", text, re.MULTILINE)
    items = re.findall(rb"-[ \t]*([^\n]+)", listed.group(1)) if listed else value.strip(b"[]").split(b",")
    return [item.strip().strip(b"\"'").decode("utf-8", "replace") for item in items if item.strip()]


def _parse(path: Path) -> dict[str, Entry]:
    """Entries of one file. A file that is no task file gives none."""
    try:
        config = _read(path, set())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return _entries(config, path)


def _read(path: Path, seen: set[Path]) -> dict[str, Any]:
    path = path.resolve()
    if path in seen:
        raise ValueError(f"{path} includes itself")
    config = yaml.load(path.read_bytes(), Loader=_Loader)  # a SafeLoader with one more tag
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no mapping")
    includes = config.pop("include", [])
    merged: dict[str, Any] = {}
    for item in includes if isinstance(includes, list) else [includes]:
        merged.update(_read(path.parent / str(item), seen | {path}))
    return {**merged, **config}


def _entries(config: dict[str, Any], path: Path) -> dict[str, Entry]:
    if "group" in config:
        return _group(config, path)
    name = config.get("task")
    if not isinstance(name, str):
        return {}
    tags = config.get("tag") or []
    entry = Entry(
        name,
        "task",
        path,
        scores=_task_scores(config),
        output_type=str(config.get("output_type", "")),
        tags=[str(tag) for tag in (tags if isinstance(tags, list) else [tags])],
    )
    return {name: entry}


def _group(config: dict[str, Any], path: Path) -> dict[str, Entry]:
    name = str(config["group"])
    children = config.get("task") or []
    found: dict[str, Entry] = {}
    names = []
    for child in children if isinstance(children, list) else [children]:
        if isinstance(child, dict):
            inner = _entries(child, path)
            found.update(inner)
            names += [str(child.get("group") or child.get("task"))]
        else:
            names.append(str(child))
    aggregates = config.get("aggregate_metric_list") or []
    scores = []
    for item in aggregates if isinstance(aggregates, list) else [aggregates]:
        filters = item.get("filter_list")
        filters = [filters] if isinstance(filters, str) else filters
        scores += [f"{item['metric']},{name}" for name in filters] if filters else [str(item["metric"])]
    found[name] = Entry(name, "group", path, children=names, scores=scores)
    return found


def _task_scores(config: dict[str, Any]) -> list[str] | None:
    """`metric,filter` keys. None for a task in Python, or one whose metrics are functions."""
    if "class" in config or not config.get("output_type"):
        return None
    listed = config.get("metric_list")
    names = [item.get("metric") for item in listed] if isinstance(listed, list) else None
    metrics = names or _DEFAULT_METRICS.get(str(config["output_type"]), [])
    if any(not isinstance(metric, str) or metric.startswith("!function") for metric in metrics):
        return None
    filters = [str(item["name"]) for item in config.get("filter_list") or []] or ["none"]
    return [f"{metric},{name}" for name in filters for metric in metrics]
