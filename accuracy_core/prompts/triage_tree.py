"""The triage tree as data: nodes, conditions and numeric bounds of `triage_tree.toml`."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic import Field

from accuracy_core.schemas import Part

Fact = bool | float | str
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class TriageNode(Part):
    """One branch. `when`: (fact, operator, value); a value that names a bound stands for that bound."""

    id: str
    parent: str = ""
    group: str
    label: str
    says: str
    when: list[tuple[str, str, bool | float | str]] = Field(min_length=1)
    suspects: list[str] = Field(default_factory=list)
    next: str = Field("", description="what to do next, in words")
    command: str = Field("", description="command for that; {target}, {output} and {module} are filled in")


class ModuleKind(Part):
    """What a canonical tap is, by its name. Several patterns may have one id."""

    id: str
    pattern: str


class TriageTree(Part):
    """All branches, parents before children."""

    bounds: dict[str, float]
    provenance: dict[str, str]
    node: list[TriageNode]
    kind: list[ModuleKind]

    def kind_of(self, module: str) -> str:
        """Kind of a module, as in `norm`; "other" when no pattern fits its name."""
        return next((kind.id for kind in self.kind if re.search(kind.pattern, module)), "other")

    def lit(self, facts: Mapping[str, Fact]) -> list[TriageNode]:
        """Nodes whose conditions hold, parents first. A comparison with NaN holds never."""
        on: dict[str, TriageNode] = {}
        for node in self.node:
            if (not node.parent or node.parent in on) and all(self._holds(facts, *rule) for rule in node.when):
                on[node.id] = node
        return list(on.values())

    def _holds(self, facts: Mapping[str, Fact], name: str, op: str, value: Fact) -> bool:
        bound = self.bounds.get(value, value) if isinstance(value, str) else value
        return name in facts and _OPERATORS[op](facts[name], bound)


@cache
def load_triage_tree() -> TriageTree:
    """The tree that ships with the package."""
    text = (resources.files("accuracy_core.prompts") / "triage_tree.toml").read_text(encoding="utf-8")
    return TriageTree.model_validate(tomllib.loads(text))
