"""What an engine's log says about its end."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

_TAIL_BYTES = 1 << 16
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class FailureKind(StrEnum):
    """Why an engine did not start, as far as its log tells."""

    ARGUMENT = "argument"
    MODEL = "model"
    WEIGHTS = "weights"
    PORT = "port"
    MEMORY = "memory"
    FAULT = "fault"
    UNKNOWN = "unknown"


#: first match wins; searched in the end of the log
_SIGNS: tuple[tuple[FailureKind, str], ...] = (
    (FailureKind.FAULT, r"assay fault not applicable"),
    (FailureKind.PORT, r"address already in use|Errno 98\b"),
    (
        FailureKind.MEMORY,
        r"out of memory|OutOfMemoryError|std::bad_alloc|Cannot allocate memory|MemoryError"
        r"|No available memory for the cache|less than requested memory|free memory on device .* less than"
        r"|NRT_RESOURCE",
    ),
    (
        FailureKind.MODEL,
        r"is not a local folder and is not a valid model identifier|Repo id must|RepositoryNotFoundError|GatedRepoError"
        r"|does not appear to have a file named|Can't load the configuration of|Can't load tokenizer"
        r"|Unrecognized model in|model type .* but Transformers does not recognize|are not supported for now"
        r"|Cannot find any model weights|HeaderTooLarge|SafetensorError|Invalid repository ID"
        r"|LocalEntryNotFoundError|cannot find the requested files",
    ),
    (
        FailureKind.WEIGHTS,
        r"weights were not initialized from\s+checkpoint|There is no module or parameter named"
        r"|Attempted to load weight .* into parameter|KeyError: '(?:model\.)?layers\.\d+\."
        r"|Error\(s\) in loading state_dict",
    ),
    (
        FailureKind.ARGUMENT,
        r"unrecognized arguments?|error: argument|invalid choice|expected one argument|ambiguous option"
        r"|validation errors? for \w*Config|unexpected keyword argument|unknown engine argument|ValidationError"
        r"|greater than the derived max_model_len|larger than the maximum number of tokens|Unknown quantization method"
        r"|is not supported for quantization|must be divisible by|is not divisible by",
    ),
)


def log_tail(path: Path, lines: int = 30) -> str:
    """The last `lines` lines of the log at `path`, without colour codes; '' when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(_ANSI.sub("", text).splitlines()[-lines:])


def classify(text: str) -> FailureKind:
    """Why the engine whose log ends in `text` failed."""
    for kind, pattern in _SIGNS:
        if re.search(pattern, text, re.IGNORECASE):
            return kind
    return FailureKind.UNKNOWN


#: what the user can do, per kind
FIXES = {
    FailureKind.ARGUMENT: "correct the engine argument named in the log; `engine_args` takes vLLM's names",
    FailureKind.MODEL: "check the model: a complete Hugging Face folder, or an id that can be reached",
    FailureKind.WEIGHTS: "download the checkpoint again, all shards of it, and check that config.json (architectures, "
    "tie_word_embeddings, quantization_config) is of the same revision as the weights",
    FailureKind.PORT: "choose another port, or leave it out for a free one",
    FailureKind.MEMORY: "lower max_model_len, max_num_seqs or kv_cache_memory_bytes, or free memory on the device",
    FailureKind.FAULT: "choose another layer, or a fault that this engine can take",
    FailureKind.UNKNOWN: "see the log",
}
