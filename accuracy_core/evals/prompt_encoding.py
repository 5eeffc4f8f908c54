"""How a prompt becomes token ids: BOS settled from the tokenizer, never by a default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accuracy_core.errors import ConfigurationError


@dataclass(frozen=True)
class PromptEncoder:
    """Encodes prompts as the tokenizer's own post-processor would, with two differences.

    A prompt that already begins with the special prefix gets no second one (a double BOS scores .30 instead of .94),
    and nothing is ever appended (some tokenizers add EOS, which would end the prompt).
    """

    tokenizer: Any
    prefix_ids: tuple[int, ...]

    @classmethod
    def for_tokenizer(cls, tokenizer: Any) -> PromptEncoder:
        """`prefix_ids`: what the tokenizer puts before a text, usually one BOS or nothing."""
        plain = _ids(tokenizer, "a", special=False)
        full = _ids(tokenizer, "a", special=True)
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return cls(tokenizer, tuple(full[:start]))
        raise ConfigurationError(
            f"the tokenizer encodes 'a' as {plain} without special tokens and as {full} with them",
            fix="use the tokenizer that belongs to the model",
        )

    def encode(self, text: str) -> list[int]:
        return self._with_prefix(_ids(self.tokenizer, text, special=False))

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        ids = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False).input_ids
        return [self._with_prefix(item) for item in ids]

    def _with_prefix(self, ids: list[int]) -> list[int]:
        prefix = list(self.prefix_ids)
        return ids if prefix and ids[: len(prefix)] == prefix else prefix + ids

    def keep_prefix(self, ids: list[int]) -> list[int]:
        """A prompt that was cut on the left gets its prefix back, in place of its first tokens: the length stays."""
        prefix = list(self.prefix_ids)
        return ids if ids[: len(prefix)] == prefix else prefix + ids[len(prefix) :]

    def describe(self) -> dict[str, Any]:
        """For the record: what is put before each prompt."""
        tokens = self.tokenizer.convert_ids_to_tokens(list(self.prefix_ids))
        return {
            "bos_token": self.tokenizer.bos_token,
            "bos_token_id": self.tokenizer.bos_token_id,
            "prefix_ids": list(self.prefix_ids),
            "prefix_tokens": list(tokens),
            "source": "post-processor of the tokenizer",
        }


def _ids(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special, return_attention_mask=False).input_ids)
