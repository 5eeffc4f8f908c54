"""An engine that can be told how to serve, small enough to be followed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from prompt_fakes import SPEC, FakeEngine, clean_rows

from accuracy_core.engines.protocol import Capabilities
from accuracy_core.errors import EngineDiedError
from accuracy_core.prompts.context import Goldens
from accuracy_core.schemas import EngineSpec, ReplayConditions, ReplayConduct, ReplayRequest, ReplayResult

BLOCK = 32
#: (name of the pass, rows) -> rows; passes are a1, a2, prefix_cache-b1, …
Change = Callable[[str, torch.Tensor], torch.Tensor]


class ServingEngine(FakeEngine):
    """Answers every request with the same clean rows, whatever the way of serving, and tells how it served.

    `change` alters rows by pass, `conducts` what is told, `able` the capabilities, `die_in` ends the engine in a pass.
    """

    def __init__(
        self,
        scratch: Path,
        goldens: Goldens,
        *,
        change: Change = lambda name, rows: rows,
        conducts: Callable[[str, ReplayConduct], ReplayConduct | None] = lambda name, conduct: conduct,
        die_in: str = "",
        **able: bool,
    ) -> None:
        super().__init__(scratch, [])
        self.goldens, self.alter, self.conducts, self.die_in = goldens, change, conducts, die_in
        self.able = {"batching": True, "chunked_prefill": True, "prefix_caching": True, **able}
        self.passes: list[tuple[str, ReplayConditions]] = []
        self.opened_with: list[EngineSpec] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(forced_decode=True, raw_logits=True, **self.able)

    def replay_under(self, requests: Sequence[ReplayRequest], conditions: ReplayConditions) -> list[ReplayResult]:
        name = requests[0].request_id.removeprefix("consistency-").rsplit("-", 1)[0]
        self.passes.append((name, conditions))
        asked = {"batching": conditions.together, "chunked_prefill": conditions.prefill_chunk,
                 "prefix_caching": conditions.read_prefixes}  # fmt: skip
        lacking = [capability for capability, wanted in asked.items() if wanted and not self.able[capability]]
        if lacking:
            error = f"not measured: this engine lacks {lacking[0]}: it is switched off"
            return [ReplayResult(request_id=request.request_id, token_ids=[], error=error) for request in requests]
        if name == self.die_in:
            raise EngineDiedError("the engine is gone", log_tail="last words")
        places = [int(request.request_id.rsplit("-", 1)[1]) for request in requests]
        self.rows = [self.alter(name, clean_rows(self.goldens, place)) for place in places]
        answers = self.replay(requests)
        together = len(requests) if conditions.together else 1
        return [
            answer.model_copy(update={"conduct": self.conducts(name, _conduct(request, conditions, together))})
            for request, answer in zip(requests, answers, strict=True)
        ]

    def module_names(self) -> dict[str, str]:
        return {}

    def open(self, spec: EngineSpec) -> ServingEngine:
        self.opened_with.append(spec)
        return self


def _conduct(request: ReplayRequest, conditions: ReplayConditions, together: int) -> ReplayConduct:
    length = len(request.prompt_token_ids)
    cached = (length - 1) // BLOCK * BLOCK if conditions.read_prefixes else 0
    piece = conditions.prefill_chunk or length
    chunks = [min(piece, length - cached - at * piece) for at in range(math.ceil((length - cached) / piece))]
    return ReplayConduct(cached_tokens=cached, prefill_chunks=chunks, largest_batch=together)


SERVING_SPEC = SPEC.model_copy(update={"dtype": "bfloat16"})
