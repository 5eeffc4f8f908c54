"""The report: one self-contained HTML page and `report.json`, built from the typed files of a run directory."""

from accuracy_core.report.build import generate_report
from accuracy_core.report.document import ReportDocument
from accuracy_core.report.registry import REPORT_SECTIONS, register_section

__all__ = ["REPORT_SECTIONS", "ReportDocument", "generate_report", "register_section"]
