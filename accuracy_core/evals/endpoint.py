"""The server's address, and what it says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from accuracy_core.errors import ConfigurationError, InfrastructureError


@dataclass(frozen=True)
class ServedModel:
    """What `/v1/models` says. `root` is the checkpoint the server loaded, `max_model_len` its context in tokens."""

    name: str
    root: str | None
    max_model_len: int | None


def server_root(base_url: str) -> str:
    """`http://host:port` from any of `http://host:port`, `…/v1`, `…/v1/completions`, `…/v1/chat/completions`."""
    parts = urlsplit(base_url.strip())
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f"base_url {base_url!r} is no http address", fix="e.g. http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    for suffix in ("/chat/completions", "/completions", "/v1"):
        path = path.removesuffix(suffix)
    return f"{parts.scheme}://{parts.netloc}{path}"


def completions_url(root: str, *, chat: bool) -> str:
    return f"{root}/v1/{'chat/' if chat else ''}completions"


def served_model(root: str, model: str, *, api_key: str | None, timeout_s: float = 10) -> ServedModel:
    """Ask the server for `model`.

    Raises InfrastructureError when it does not answer, ConfigurationError (listing what it serves) when it has no
    `model`.
    """
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(f"{root}/v1/models", headers=headers, timeout=timeout_s, trust_env=False)
        response.raise_for_status()
        models = response.json()["data"]
        known = {str(entry["id"]): entry for entry in models}
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise ConfigurationError(
                f"{root} refuses the API key", fix="name the key's variable with api_key_env"
            ) from error
        raise InfrastructureError(f"{root}/v1/models answered {error.response.status_code}") from error
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"no OpenAI-compatible server answers at {root}: {error!r}", fix="start the server, or correct base_url"
        ) from error
    if model not in known:
        raise ConfigurationError(
            f"{root} serves no model {model!r}, but {', '.join(repr(name) for name in sorted(known)) or 'none'}",
            fix="use the served name (--served-model-name)",
        )
    entry = known[model]
    length = entry.get("max_model_len")
    return ServedModel(model, entry.get("root"), length if isinstance(length, int) else None)
