"""Did the server see the tokens that were meant? On requests that were really made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accuracy_core.prompts.preflight.facts import PreflightFacts, SeenRequest
from accuracy_core.prompts.preflight.registry import preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding

_SHOWN = 8


@preflight_check("tokens", "requests", "does the server see the tokens that the reference tokenizer gives?")
def check_tokens(facts: PreflightFacts) -> Iterator[Finding]:
    """One finding per kind of deviation, with the first request that shows it and how many do."""
    known = [request for request in facts.seen if request.token_ids and (request.text or request.messages)]
    if facts.tokenizer is None or not known:
        yield unmeasured("tokens", "the server returned no prompt token ids, or there is no reference tokenizer")
        return
    kinds: dict[str, list[tuple[SeenRequest, list[int]]]] = {}
    for request in known:
        expected = expected_ids(facts.tokenizer, request)
        kind = deviation(request.token_ids or [], expected, facts.tokenizer.bos_token_id)
        if kind == "tokenisation" and request.messages is not None:
            kind = "chat_template"
        if kind:
            kinds.setdefault(kind, []).append((request, expected))
    for kind, found in kinds.items():
        request, expected = found[0]
        seen = list(request.token_ids or [])
        yield wrong(
            kind,
            f"{len(found)} of {len(known)} requests: the server saw {_start(facts.tokenizer, seen)}, the reference "
            f"tokenizer gives {_start(facts.tokenizer, expected)} ({len(seen)} and {len(expected)} tokens)",
            _FIXES[kind],
        )


_FIXES = {
    "double_bos": "send token ids, or text without the BOS: the server's tokenizer adds one itself "
    "(add_special_tokens=false for a prompt that was rendered by a chat template)",
    "missing_bos": "let the server add special tokens (add_special_tokens=true), or send token ids that begin with BOS",
    "chat_template": "start the server with the checkpoint's own template (no --chat-template, or the right file), and "
    "compare chat_template_kwargs",
    "tokenisation": "give server and reference the same tokenizer files, and the same revision of them",
}


def expected_ids(tokenizer: Any, request: SeenRequest) -> list[int]:
    """Ids of the reference tokenizer: its chat template for messages, else the text with its special tokens."""
    if request.messages is not None:
        encoded = tokenizer.apply_chat_template(request.messages, add_generation_prompt=True, tokenize=True)
        ids = encoded["input_ids"] if hasattr(encoded, "keys") else encoded
        return [int(token) for token in ids]
    from accuracy_core.evals.prompt_encoding import PromptEncoder

    return PromptEncoder.for_tokenizer(tokenizer).encode(request.text or "")


def deviation(seen: list[int], expected: list[int], bos: int | None) -> str:
    """'' when both agree, else what kind of difference it is."""
    if seen == expected:
        return ""
    if bos is not None:
        if seen == [bos, *expected] and expected[:1] == [bos]:
            return "double_bos"
        if expected[:1] == [bos] and seen == expected[1:]:
            return "missing_bos"
        if seen[:2] == [bos, bos] and expected[:2] != [bos, bos]:
            return "double_bos"
        if expected[:1] == [bos] and seen[:1] != [bos] and seen[-len(expected) + 1 :] == expected[1:]:
            return "missing_bos"
    return "tokenisation"


def _start(tokenizer: Any, ids: list[int]) -> str:
    tokens = tokenizer.convert_ids_to_tokens(ids[:_SHOWN])
    return f"{ids[:_SHOWN]} {tokens}{' …' if len(ids) > _SHOWN else ''}"
