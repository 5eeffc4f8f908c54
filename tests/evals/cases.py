"""The shared lm-eval cases: `cases/lm_eval/*/expected.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "cases" / "lm_eval"


@dataclass(frozen=True)
class Expectation:
    """One threshold set of a case: the case's own, or one of `more`."""

    case: str
    number: int
    expected: dict[str, Any]
    input: str
    input_kind: str

    @property
    def source(self) -> Any:
        """What is passed to the analysis: a path, or the dict itself."""
        path = ROOT / self.case / self.input
        return json.loads(path.read_text(encoding="utf-8")) if self.input_kind == "dict" else path

    def __str__(self) -> str:
        return f"{self.case}-{self.number}"


def expectations() -> list[Expectation]:
    found = []
    for folder in sorted(ROOT.iterdir()):
        if not folder.is_dir():
            continue
        case = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        for number, expected in enumerate([case, *case.get("more", [])]):
            source = expected.get("input", case["input"])
            found.append(Expectation(folder.name, number, expected, source, case["input_kind"]))
    return found


def cases() -> list[Expectation]:
    return [item for item in expectations() if item.number == 0]
