"""Do the engine's tokenizer and the reference's give the same ids?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding

#: texts in which revisions of a tokenizer are known to differ: spaces, digits, case, newlines, other scripts, specials
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces\tand a tab\n\nnewlines  ",
    "1234567890 3.14159 1,000,000 0x1F",
    "def f(x):\n    return x**2  # naïve café",
    "日本語 Ελληνικά العربية 🙂",
    "<s> </s> <|endoftext|> [INST] <|im_start|>",
)
_SHOWN = 6
_FIX = "take the tokenizer of the checkpoint's own revision (leave --tokenizer out)"


@preflight_check("tokenizer", "tokenizer", "do the engine's tokenizer and the checkpoint's agree?")
def check_tokenizer(facts: PreflightFacts) -> Iterator[Finding]:
    if facts.tokenizer_problem:
        yield unmeasured("tokenizer", facts.tokenizer_problem)
        return
    if facts.target_tokenizer is None:
        return  # one tokenizer for both sides
    if facts.tokenizer is None:
        yield unmeasured("tokenizer", "there is no reference tokenizer to compare with")
        return
    texts = [*PROBES, *(request.text for request in facts.seen if request.text)]
    differing = [text for text in texts if _ids(facts.tokenizer, text) != _ids(facts.target_tokenizer, text)]
    if differing:
        text = differing[0]
        yield wrong(
            "tokenizer",
            f"the engine's tokenizer and the checkpoint's differ on {len(differing)} of {len(texts)} texts: "
            f"{text[:40]!r} is {_ids(facts.target_tokenizer, text)[:_SHOWN]} and "
            f"{_ids(facts.tokenizer, text)[:_SHOWN]}",
            _FIX,
        )
    elif moved := _moved(facts.tokenizer, facts.target_tokenizer):
        token, (own, other) = next(iter(moved.items()))
        yield wrong(
            "tokenizer",
            f"{len(moved)} tokens have other ids in the engine's tokenizer than in the checkpoint's: {token[:40]!r} is "
            f"{other} and {own}",
            _FIX,
        )


def _moved(own: Any, other: Any) -> dict[str, tuple[int, int]]:
    """Tokens that both have under different ids -> the ids. No text at hand may use them; a later one will."""
    known = own.get_vocab()
    return {token: (known[token], id_) for token, id_ in other.get_vocab().items() if known.get(token, id_) != id_}


def _ids(tokenizer: object, text: str) -> list[int]:
    return list(tokenizer(text, return_attention_mask=False).input_ids)  # type: ignore[operator]
