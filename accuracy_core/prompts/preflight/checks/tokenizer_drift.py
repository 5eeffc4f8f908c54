"""Do the engine's tokenizer and the reference's give the same ids?"""

from __future__ import annotations

from collections.abc import Iterator

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
            "take the tokenizer of the checkpoint's own revision (leave --tokenizer out)",
        )


def _ids(tokenizer: object, text: str) -> list[int]:
    return list(tokenizer(text, return_attention_mask=False).input_ids)  # type: ignore[operator]
