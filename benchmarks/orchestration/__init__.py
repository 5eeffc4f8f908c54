"""Parts of the orchestration benchmarks: a light engine, and pools with workers of their own."""
