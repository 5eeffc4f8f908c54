"""Do both sides render conversations, and with the same template?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, wrong
from accuracy_core.schemas import Finding

#: long enough to show system handling, turns and the generation prompt
_CONVERSATION = [
    {"role": "user", "content": "What is 12+34?"},
    {"role": "assistant", "content": "46"},
    {"role": "user", "content": "And 46+1?"},
]


@preflight_check("chat_template", "tokenizer", "are conversations rendered with the checkpoint's template?")
def check_chat_template(facts: PreflightFacts) -> Iterator[Finding]:
    """Without a template nothing can be rendered, by either side; another one means other tokens."""
    if facts.tokenizer is None or not (facts.chat or any(request.messages is not None for request in facts.seen)):
        return
    own, given = getattr(facts.tokenizer, "chat_template", None), facts.spec.engine_args.get("chat_template")
    if not own:
        yield wrong(
            "chat_template",
            "the evaluation sends conversations, and the tokenizer has no chat template",
            "use plain completions for this model (no --chat), or a tokenizer folder with a template (--tokenizer)",
        )
    elif given and (difference := _difference(facts.tokenizer, str(given))):
        yield wrong(
            "chat_template",
            f"the engine's --chat-template {difference}",
            "leave chat_template out of the engine's arguments, or put the template into the checkpoint's folder",
        )
    elif given and not _is_readable(str(given)):
        yield doubtful("chat_template", "the engine's --chat-template cannot be read here", "give a file of this host")


def _difference(tokenizer: Any, given: str) -> str:
    """'' when both templates give the same tokens, or when the other one is not at hand."""
    text = _text(given)
    if text is None:
        return ""
    own, other = (_ids(tokenizer, template) for template in (None, text))
    if own == other:
        return ""
    return (
        f"renders a conversation as {other[:8]} … ({len(other)} tokens), the checkpoint's as {own[:8]} … ({len(own)})"
    )


def _ids(tokenizer: Any, template: str | None) -> list[int]:
    encoded = tokenizer.apply_chat_template(
        _CONVERSATION, chat_template=template, add_generation_prompt=True, tokenize=True
    )
    ids = encoded["input_ids"] if hasattr(encoded, "keys") else encoded
    return [int(token) for token in ids]


def _is_readable(given: str) -> bool:
    return _text(given) is not None


def _text(given: str) -> str | None:
    """The template: vLLM takes a file or, with Jinja's braces in it, the text itself."""
    if "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
