"""Models: the bundled tiny Llama, how it was trained, and how a model's name becomes a checked folder."""

from accuracy_core.models.resolve import EMBEDDED, embedded_model, model_fingerprint, resolve_model

__all__ = ["EMBEDDED", "embedded_model", "model_fingerprint", "resolve_model"]
