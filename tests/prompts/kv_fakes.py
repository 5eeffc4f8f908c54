"""References and an engine with KV caches made of random numbers, in the shape of the embedded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.errors import EngineDiedError
from accuracy_core.prompts.plugins.kv_cache import KvCachePlugin
from accuracy_core.prompts.plugins.kv_references import KvReferences
from accuracy_core.schemas import EngineSpec, ReplayRequest, ReplayResult

LAYERS, HEADS, WIDTH = 4, 2, 32
NOISE = 2.0**-8
SPEC = EngineSpec(model="embedded", engine="fake", max_model_len=256)
#: name -> tensor, changed in place before the engine "writes" them
Change = Callable[[dict[str, torch.Tensor]], None]


def caches(positions: int, seed: int) -> tuple[dict[str, list[torch.Tensor]], dict[str, torch.Tensor]]:
    """(golden tensors of both references, the target's)."""
    g = torch.Generator().manual_seed(seed)
    golden: dict[str, list[torch.Tensor]] = {}
    target: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        for which in ("key", "value"):
            f = torch.randn(HEADS, positions, WIDTH, generator=g)
            b, t = ((f * (1 + NOISE * torch.randn(f.shape, generator=g))).to(torch.bfloat16) for _ in range(2))
            name = f"kv.{layer}.{which}"
            golden |= {f"fp32.{name}": [f], f"dtype.{name}": [b]}
            target[name] = t
    return golden, target


class KvEngine:
    """Answers each request with its prompt's cache after `change`. `given` adds what attention was given: the unchanged
    values, as vLLM's taps. `ranks` splits the heads over tensor-parallel ranks."""

    name = "fake"

    def __init__(
        self,
        scratch: Path,
        targets: Mapping[str, dict[str, torch.Tensor]],
        change: Change | None = None,
        *,
        given: bool = False,
        changed_before: bool = False,
        ranks: int = 1,
        kv: bool = True,
        answer: Callable[[ReplayResult], ReplayResult] = lambda result: result,
        die_at: int | None = None,
    ) -> None:
        self.spec, self.scratch, self.targets, self.change = SPEC, scratch, targets, change
        self.given, self.changed_before, self.ranks, self.kv = given, changed_before, ranks, kv
        self.answer, self.die_at = answer, die_at
        self.most_files = 0
        self.asked: list[ReplayRequest] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(forced_decode=True, raw_logits=True, kv_cache=self.kv, hooks=self.given)

    def module_names(self) -> dict[str, str]:
        return {f"model.layers.{layer}.self_attn.attn": "Attention" for layer in range(LAYERS)}

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        return [self._one(request) for request in requests]

    def _one(self, request: ReplayRequest) -> ReplayResult:
        if self.die_at == len(self.asked):
            raise EngineDiedError("the engine is gone")
        self.asked.append(request)
        tensors = {name: tensor.clone() for name, tensor in self.targets[request.request_id].items()}
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        if self.change is not None:
            self.change(tensors)
        given = tensors if self.changed_before else before
        if self.given:
            for tap in request.capture.modules:
                module, _, which = tap.partition(":")
                rows = given[f"kv.{module.split('.')[2]}.{which}"]
                tensors[f"tap.{tap}"] = rows.transpose(0, 1).flatten(1)
        paths = []
        for rank in range(self.ranks):
            path = self.scratch / f"{request.request_id}.{rank}.safetensors"
            save_file({name: _part(tensor, rank, self.ranks) for name, tensor in tensors.items()}, path)
            paths.append(str(path))
        self.most_files = max(self.most_files, len(list(self.scratch.glob("*.safetensors"))))
        return self.answer(
            ReplayResult(
                request_id=request.request_id,
                token_ids=list(request.forced_token_ids),
                tensors=paths[0],
                shards=paths[1:],
                names=sorted(tensors),
                block_size=16,
            )
        )

    def close(self) -> None: ...

    def __enter__(self) -> KvEngine:
        return self

    def __exit__(self, *exc: object) -> None: ...


def _part(tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    axis = 0 if tensor.ndim == 3 else 1
    return tensor.chunk(ranks, axis)[rank].contiguous() if ranks > 1 else tensor.contiguous()


class Prepared(KvCachePlugin):
    """The plugin with references given by hand."""

    def __init__(self, goldens: Sequence[Mapping[str, list[torch.Tensor]]], forced: list[int], folder: Path) -> None:
        super().__init__()
        self.made, self.forced, self.folder = goldens, forced, folder

    def pre_llm(self, ctx) -> None:
        kept = dict(enumerate(self.made))
        tokens = dict.fromkeys(kept, self.forced)
        self._references = KvReferences(self.folder, tokens=tokens, kept=kept)  # type: ignore[arg-type]
