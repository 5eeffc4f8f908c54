"""The one engine that the plugins share, and the generate function built on it."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.errors import InfrastructureError
from accuracy_core.prompts.context import EngineFactory, GenerateFn
from accuracy_core.schemas import EngineSpec, ReplayRequest, ReplayResult

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def shared_engine(
    spec: EngineSpec,
    engine: TargetEngine | None,
    factory: EngineFactory | None,
    lease: Any,
    log_path: Path | None = None,
) -> Iterator[TargetEngine]:
    """The caller's `engine` (left open), else a new one that is closed on the way out.

    A new one is made by `factory`, or by the engine registry, which then logs to `log_path`.
    """
    if engine is not None:
        yield engine
        return
    if factory is None:
        from accuracy_core.engines.registry import open_engine

        made = open_engine(spec, lease=lease, log_path=log_path)
    else:
        made = factory(spec)
    with made as opened:
        yield opened


def free_log(path: Path) -> Path:
    """`engine.log`, or the next free `engine-2.log`: a second engine must not overwrite what the first one said."""
    names = (path if number == 1 else path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def read_logits(result: ReplayResult) -> torch.Tensor:
    """Recorded rows, float32 (tokens, vocab). Raises InfrastructureError when the engine left no logits."""
    from safetensors.torch import load_file

    if result.tensors is None:
        raise InfrastructureError(f"the engine recorded no tensors for {result.request_id}")
    tensors = load_file(result.tensors)
    if "logits" not in tensors:
        raise InfrastructureError(f"{result.request_id}: no logits among the recorded tensors {sorted(tensors)}")
    return tensors["logits"].float()


def make_generate_fn(engine: TargetEngine, output_length: int) -> GenerateFn:
    """Greedy generation of `output_length` tokens through `engine`, in the form that `logit_validation` takes."""
    import torch

    def generate(input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = input_ids.tolist()
        tag = uuid.uuid4().hex[:8]
        requests = [
            ReplayRequest(request_id=f"gen-{tag}-{i}", prompt_token_ids=row, max_new_tokens=output_length)
            for i, row in enumerate(rows)
        ]
        results = engine.replay(requests)
        failed = [result for result in results if result.error]
        if failed:
            raise InfrastructureError(f"generation failed: {failed[0].error}")
        logits = torch.stack([read_logits(result) for result in results], dim=1)
        return logits, torch.tensor([result.token_ids for result in results], dtype=torch.int64).T

    return generate
