"""Built-in sections of the report."""
