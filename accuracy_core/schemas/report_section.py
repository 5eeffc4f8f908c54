"""Interface of a section of the report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from accuracy_core.schemas.run_dir import RunDir


class Tab(StrEnum):
    OVERVIEW = "overview"
    TASK = "task"
    PROMPT = "prompt"
    HISTORY = "history"


class ReportSection(ABC):
    """A section reads typed files of the run directory and renders escaped HTML. It never parses printed text."""

    name: ClassVar[str]
    title: ClassVar[str]
    tab: ClassVar[Tab]

    @abstractmethod
    def applies(self, run_dir: RunDir) -> bool:
        """True when the run directory holds what this section shows."""

    @abstractmethod
    def render(self, run_dir: RunDir) -> str:
        """HTML of the section. Everything that comes from a prompt, a model or a log is escaped."""

    def render_prompt(self, run_dir: RunDir, index: int) -> str:
        """HTML that belongs to one prompt, for sections of the prompt tab; '' for none. Escaped as in `render`."""
        return ""
