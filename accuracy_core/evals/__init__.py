"""Task evaluation (level 1): running lm-eval against a server, reading its results, and judging the scores."""
