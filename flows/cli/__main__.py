"""`python -m flows.cli` is the `assay` command."""

from flows.cli import main

main()
