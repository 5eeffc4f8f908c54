"""Asking a running OpenAI-compatible server what it is, what it sees, and whether it is greedy by default.

A handful of requests of a few tokens. What a server does not offer is noted as refused and stays not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.evals.endpoint import server_root
from accuracy_core.prompts.preflight.facts import SeenRequest, ServerFacts

TEXTS = (
    "Q: 12+34\nA:",
    "The quick brown fox",
    "def add(a, b):\n    return",
    "日本語の文章 and Ελληνικά",
)
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "What is 12+34?"}],
    [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "And now?"},
    ],
)
GREEDY = {"temperature": 0, "top_p": 1.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
GREEDY_TOKENS = 16


@dataclass(frozen=True)
class ServerProbe:
    """What was learned. `root` is the checkpoint that the server says it loaded, when it says so."""

    facts: ServerFacts
    seen: tuple[SeenRequest, ...]
    root: str | None


@dataclass
class _Client:
    """One server; `refused` collects what it does not offer."""

    http: Any
    model: str
    refused: dict[str, str] = field(default_factory=dict)

    def post(self, path: str, what: str, **body: Any) -> dict[str, Any] | None:
        """The JSON answer, or None when the server refuses; a time-out or a lost connection is raised."""
        import httpx

        try:
            response = self.http.post(path, json={"model": self.model, **body})
        except httpx.HTTPError as error:
            raise _gone(error) from error
        if response.status_code != httpx.codes.OK:
            self.refused[what] = f"{path}: {response.status_code} {response.text[:200]}"
            return None
        try:
            answer = response.json()
        except ValueError:
            self.refused[what] = f"{path}: the answer is not JSON"
            return None
        return answer if isinstance(answer, dict) else None


def probe_server(
    base_url: str, *, model: str | None = None, api_key: str | None = None, timeout_s: float = 30
) -> ServerProbe:
    """Look at the server at `base_url`. `model` is the served name; None takes the only one it serves.

    Raises InfrastructureError when it does not answer in time, ConfigurationError for a refused key or an unknown
    model.
    """
    import httpx

    root = server_root(base_url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=root, headers=headers, timeout=timeout_s, trust_env=False) as http:
        served = _models(http)
        name = _choose(served, model)
        client = _Client(http, name)
        seen = [*_texts(client), *_conversations(client)]
        facts = ServerFacts(
            base_url=root,
            model=name,
            max_model_len=served[name].get("max_model_len"),
            kind=_kind(http),
            greedy_agrees=_greedy_share(client),
            refused=dict(client.refused),
        )
    return ServerProbe(facts, tuple(seen), served[name].get("root"))


def _models(http: Any) -> dict[str, dict[str, Any]]:
    import httpx

    try:
        response = http.get("/v1/models")
    except httpx.HTTPError as error:
        raise _gone(error) from error
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ConfigurationError(
            f"the server refuses us ({response.status_code}): it needs an API key",
            fix="put the key into a variable and name it with --api-key-env",
        )
    try:
        entries = response.json()["data"]
        return {str(entry["id"]): dict(entry) for entry in entries}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"/v1/models answered {response.status_code} and no list of models: this is no OpenAI-compatible server",
            fix="give the address of the server itself, e.g. http://127.0.0.1:8000",
        ) from error


def _choose(served: dict[str, dict[str, Any]], model: str | None) -> str:
    names = ", ".join(repr(name) for name in sorted(served)) or "none"
    if model is None:
        if len(served) != 1:
            raise ConfigurationError(f"the server serves {names}", fix="choose one with --served-model")
        return next(iter(served))
    if model not in served:
        raise ConfigurationError(f"the server serves no model {model!r}, but {names}", fix="use a served name")
    return model


def _kind(http: Any) -> str | None:
    """`vllm 0.32.0` for a server that says so."""
    import httpx

    try:
        answer = http.get("/version")
        version = answer.json().get("version") if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError, AttributeError):
        return None
    return f"vllm {version}" if version else None


def _texts(client: _Client) -> list[SeenRequest]:
    found = []
    for text in TEXTS:
        answer = client.post(
            "/v1/completions", "token ids of a text", prompt=text, max_tokens=1, return_token_ids=True, **GREEDY
        )
        ids = _prompt_ids(answer)
        if ids is None and (tokens := client.post("/tokenize", "tokenize", prompt=text)) is not None:
            ids = tokens.get("tokens")
        found.append(SeenRequest(text=text, token_ids=ids))
    return found


def _conversations(client: _Client) -> list[SeenRequest]:
    found = []
    for messages in CONVERSATIONS:
        answer = client.post(
            "/v1/chat/completions", "chat", messages=messages, max_tokens=1, return_token_ids=True, **GREEDY
        )
        if answer is not None:
            found.append(SeenRequest(messages=messages, token_ids=_prompt_ids(answer)))
    return found


def _prompt_ids(answer: dict[str, Any] | None) -> list[int] | None:
    """Token ids of the prompt from a vLLM answer; None where the server does not return them."""
    if answer is None:
        return None
    choices = answer.get("choices") or [{}]
    ids = answer.get("prompt_token_ids") or (choices[0] or {}).get("prompt_token_ids")
    return [int(token) for token in ids] if isinstance(ids, list) else None


def _greedy_share(client: _Client) -> float | None:
    """Share of tokens (or, without ids, of whole texts) on which an open request agrees with an explicit greedy one."""
    same = total = 0
    for text in TEXTS:
        common = {"prompt": text, "max_tokens": GREEDY_TOKENS, "return_token_ids": True}
        plain = _output(client.post("/v1/completions", "an open request", **common))
        greedy = _output(client.post("/v1/completions", "a greedy request", **common, **GREEDY))
        if plain is None or greedy is None:
            continue
        length = max(len(plain), len(greedy))
        first = next((i for i, pair in enumerate(zip(plain, greedy, strict=False)) if pair[0] != pair[1]), None)
        same += min(len(plain), len(greedy)) if first is None else first
        total += length
    return same / total if total else None


def _output(answer: dict[str, Any] | None) -> Sequence[Any] | None:
    choices = (answer or {}).get("choices")
    if not choices:
        return None
    ids = choices[0].get("token_ids")
    text = choices[0].get("text")
    return ids if isinstance(ids, list) and ids else [text] if isinstance(text, str) else None


def _gone(error: Exception) -> InfrastructureError:
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return InfrastructureError("the server did not answer in time", fix="raise --timeout, or look at its log")
    return InfrastructureError(
        f"no server answers: {type(error).__name__}: {error}", fix="start the server, or correct the address"
    )
