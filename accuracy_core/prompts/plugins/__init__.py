"""Built-in prompt plugins."""
