"""Registry of report sections, in the order in which they appear in their tab."""

from __future__ import annotations

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import ReportSection

REPORT_SECTIONS: dict[str, ReportSection] = {}


def register_section(section: ReportSection) -> ReportSection:
    """Add a section under its `name`. Raises ConfigurationError for a name that is taken."""
    taken = REPORT_SECTIONS.get(section.name)
    if taken is not None and type(taken) is not type(section):
        raise ConfigurationError(f"two report sections are called {section.name!r}")
    REPORT_SECTIONS[section.name] = section
    return section
