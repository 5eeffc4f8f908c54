"""The unfused reference as a submission: right, and a launch for every little operation."""

from accuracy_core.grading.unfused import build  # noqa: F401
