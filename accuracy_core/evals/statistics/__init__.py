"""Tests on scores, one per file, each with its source."""
