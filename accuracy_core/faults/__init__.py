"""Registry of faults that can be injected into a target on purpose."""
