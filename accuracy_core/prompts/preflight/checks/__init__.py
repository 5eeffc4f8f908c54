"""The built-in checks; importing this registers them, in the order in which they are made."""

from accuracy_core.prompts.preflight.checks import (  # noqa: F401
    chat_template,
    positions,
    precision,
    quantization,
    sampling,
    tokenizer_drift,
    tokens,
    truncation,
    unmatched_filter,
    vocabulary,
    weights,
)
