from __future__ import annotations

from pathlib import Path

import pytest

from accuracy_core.engines.failures import start_error
from accuracy_core.engines.logs import FIXES, FailureKind, classify, log_tail
from accuracy_core.errors import EngineArgumentError, EngineStartError
from accuracy_core.outcome import Outcome

#: last lines that vLLM 0.32 was seen to print
SEEN = [
    ("api_server.py: error: unrecognized arguments: --no-such-thing=1", FailureKind.ARGUMENT),
    ("api_server.py: error: argument --dtype: invalid choice: 'int3' (choose from ...)", FailureKind.ARGUMENT),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", FailureKind.ARGUMENT),
    ("ValueError: User-specified max_model_len (4096) is greater than the derived max_model_len", FailureKind.ARGUMENT),
    ("OSError: /x is not a local folder and is not a valid model identifier listed on", FailureKind.MODEL),
    ("ValueError: Unrecognized model in /m. Should have a `model_type` key in its config.json", FailureKind.MODEL),
    ("ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}", FailureKind.WEIGHTS),
    ("ValueError: There is no module or parameter named 'lm_head' in LlamaForCausalLM.", FailureKind.WEIGHTS),
    ("KeyError: 'layers.0.self_attn.rotary_emb.extra'", FailureKind.WEIGHTS),
    ("OSError: [Errno 98] Address already in use", FailureKind.PORT),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", FailureKind.MEMORY),
    ("ValueError: No available memory for the cache blocks. Try increasing", FailureKind.MEMORY),
    ("assay fault not applicable: no module matches mlp", FailureKind.FAULT),
    ("Segmentation fault (core dumped)", FailureKind.UNKNOWN),
]


@pytest.mark.parametrize(("line", "kind"), SEEN)
def test_classification(line: str, kind: FailureKind) -> None:
    assert classify(f"INFO started\n{line}\n") is kind
    assert FIXES[kind]


@pytest.mark.parametrize(("line", "kind"), SEEN)
def test_what_the_user_can_correct_is_configuration(line: str, kind: FailureKind) -> None:
    error = start_error("it ended", line)
    infrastructure = kind in (FailureKind.MEMORY, FailureKind.UNKNOWN)
    assert isinstance(error, EngineStartError if infrastructure else EngineArgumentError)
    assert error.outcome is (Outcome.INFRASTRUCTURE if infrastructure else Outcome.CONFIGURATION)
    assert line in str(error)


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_bytes(b"x" * 200_000 + b"\n\x1b[36mlast but one\x1b[0m\n\xff last\n")
    assert log_tail(log, 2) == "last but one\n\N{REPLACEMENT CHARACTER} last"
