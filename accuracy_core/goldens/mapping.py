"""What a caller gets: names to lists of tensors, with key, source and metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from accuracy_core.goldens.metadata import GoldenMetadata
from accuracy_core.schemas import fingerprint

if TYPE_CHECKING:
    import torch

Source = Literal["disk", "s3", "computed"]


class Goldens(Mapping[str, "list[torch.Tensor]"]):
    """One golden. Tensors are read on first use and then kept.

    `source` tells where it came from; `warnings` hold what went wrong with the cache on the way (the golden itself is
    right, or there would be none).
    """

    def __init__(
        self,
        *,
        key: str,
        source: Source,
        metadata: GoldenMetadata,
        load: Callable[[str], list[torch.Tensor]],
        warnings: Sequence[str] = (),
    ) -> None:
        self.key = key
        self.source: Source = source
        self.metadata = metadata
        self.warnings = tuple(warnings)
        self._load = load
        self._loaded: dict[str, list[torch.Tensor]] = {}

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        if name not in self.metadata.tensors:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metadata.tensors)

    def __len__(self) -> int:
        return len(self.metadata.tensors)

    def __repr__(self) -> str:
        return f"Goldens({self.key[:12]}…, {self.source}, {', '.join(self)})"


class ReferenceGoldens(Mapping[str, list[Any]]):
    """References of several prompts, one golden each. Every name maps to a list with one entry per prompt.

    * `fp32_logits`, `dtype_logits`: float32 (tokens, 1, vocab); row i predicts generated token i;
    * `input_ids`: the prompt's token ids as a batch of one, `[[int, …]]`;
    * `token_ids`: the tokens that were teacher-forced, `[int, …]`, one per row;
    * any further name that was captured in the same pass: that golden's list of tensors.

    `key` identifies the whole set, `prompt_keys` the single ones. `source` is `computed` if any of them was.
    """

    def __init__(self, goldens: Sequence[Goldens]) -> None:
        self.goldens = tuple(goldens)
        self.prompt_keys = [golden.key for golden in goldens]
        self.key = fingerprint(self.prompt_keys)
        sources = {golden.source for golden in goldens}
        order: tuple[Source, ...] = ("computed", "s3", "disk")
        self.source: Source = next(source for source in order if source in sources)
        self.metadata: dict[str, GoldenMetadata] = {golden.key: golden.metadata for golden in goldens}
        self.warnings = tuple(dict.fromkeys(text for golden in goldens for text in golden.warnings))

    def __getitem__(self, name: str) -> list[Any]:
        if name == "input_ids":
            return [golden[name][0].tolist() for golden in self.goldens]
        if name == "token_ids":
            return [golden[name][0].tolist() for golden in self.goldens]
        if name in ("fp32_logits", "dtype_logits"):
            return [golden[name][0] for golden in self.goldens]
        return [golden[name] for golden in self.goldens]

    def __iter__(self) -> Iterator[str]:
        return iter(self.goldens[0])

    def __len__(self) -> int:
        return len(self.goldens[0])

    def __repr__(self) -> str:
        return f"ReferenceGoldens({self.key[:12]}…, {self.source}, {len(self.goldens)} prompts)"
