"""Do config, embeddings, lm_head and tokenizer agree on the vocabulary, and on whether they are tied?"""

from __future__ import annotations

from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import PreflightFacts, TensorInfo
from accuracy_core.prompts.preflight.registry import preflight_check, remark, unmeasured, wrong
from accuracy_core.schemas import Finding

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")


@preflight_check("vocabulary", "checkpoint", "do lm_head, embeddings, config and tokenizer have one vocabulary?")
def check_vocabulary(facts: PreflightFacts) -> Iterator[Finding]:
    size = facts.config.get("vocab_size")
    if not isinstance(size, int) or not facts.tensors:
        yield unmeasured("vocabulary", "the config names no vocab_size, or the weights' headers were not read")
        return
    for kind, names in (("embedding", _EMBEDDINGS), ("lm_head", _HEADS)):
        name, info = _find(facts, names)
        if info is not None and info.shape[0] != size:
            yield wrong(
                "vocabulary",
                f"{name} has {info.shape[0]} rows, config.json says vocab_size {size}: padding rows of the {kind} "
                "can win the argmax",
                "cut the rows beyond vocab_size, or let the engine mask them; set vocab_size to what the publisher set",
            )
    if facts.tokenizer is not None and hasattr(facts.tokenizer, "get_vocab"):
        largest = max(facts.tokenizer.get_vocab().values(), default=-1)
        if largest >= size:
            yield wrong(
                "vocabulary",
                f"the tokenizer knows ids up to {largest}, the model has {size} embeddings",
                "use the tokenizer of this checkpoint, and of its revision",
            )
        elif largest < size - 1:
            yield remark("vocabulary", f"{size - 1 - largest} of {size} rows are padding that no token id uses")


@preflight_check("tied_embeddings", "checkpoint", "does the checkpoint hold what tie_word_embeddings says?")
def check_tied(facts: PreflightFacts) -> Iterator[Finding]:
    if not facts.tensors:
        yield unmeasured("tied_embeddings", "the weights' headers were not read")
        return
    tied = bool(facts.config.get("tie_word_embeddings", facts.config.get("model_type") in _TIED_BY_DEFAULT))
    head, info = _find(facts, _HEADS)
    if not tied and info is None:
        yield wrong(
            "tied_embeddings",
            "tie_word_embeddings is off and the checkpoint has no lm_head: it would be made up at random",
            "set tie_word_embeddings to true in config.json (and in hf_overrides), or add the lm_head weights",
        )
    elif tied and info is not None and facts.folder is not None and not _equal_bytes(facts, head):
        yield wrong(
            "tied_embeddings",
            f"tie_word_embeddings is on, but the checkpoint has an {head} that differs from its embeddings and would "
            "be ignored",
            "set tie_word_embeddings to false in config.json (and in hf_overrides)",
        )
    override = facts.spec.hf_overrides.get("tie_word_embeddings")
    if isinstance(override, bool) and override != tied:
        yield wrong(
            "tied_embeddings",
            f"hf_overrides sets tie_word_embeddings to {override}, the checkpoint says {tied}",
            "take it out of hf_overrides",
        )


#: architectures whose configuration class ties when config.json is silent
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "gemma3", "gpt2", "opt")


def _find(facts: PreflightFacts, names: tuple[str, ...]) -> tuple[str, TensorInfo | None]:
    for full, info in facts.tensors.items():
        if any(full == name or full.endswith("." + name) for name in names):
            return full, info
    return "", None


def _equal_bytes(facts: PreflightFacts, head: str) -> bool:
    """Whether lm_head and embedding hold the same numbers; True where there is nothing to compare with."""
    import torch

    from accuracy_core.prompts.preflight.gather import read_tensor

    embedding, info = _find(facts, _EMBEDDINGS)
    if info is None or facts.folder is None:
        return True
    first, second = read_tensor(facts.folder, head), read_tensor(facts.folder, embedding)
    return first.shape == second.shape and bool(torch.equal(first, second))
