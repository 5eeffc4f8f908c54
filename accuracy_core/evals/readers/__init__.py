"""Readers of lm-eval's results, one per generation of its schema, into one normal form."""
