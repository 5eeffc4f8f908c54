"""A stand-in for vLLM's model runner: a model with vLLM's module names over a paged KV cache.

The hidden value of a token is its position plus 100 times its request's number, so that every row tells whose it is; K
is that value plus the head, V the same plus 0.5. Blocks hold K transposed before V, as the CPU backend's do.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

HEADS, DIM, BLOCK, BLOCKS, WIDTH = 2, 4, 4, 8, 8


class Impl:
    """Writes K transposed and V plain into the flat block."""

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        flat = cache.view(cache.shape[0], HEADS, 2 * BLOCK * DIM)
        for token, slot in enumerate(slots.tolist()):
            block, place = divmod(slot, BLOCK)
            for head in range(HEADS):
                flat[block, head, : BLOCK * DIM].view(DIM, BLOCK)[:, place] = self.stored(key[token, head])
                flat[block, head, BLOCK * DIM :].view(BLOCK, DIM)[place] = self.stored(value[token, head])

    def stored(self, row: torch.Tensor) -> torch.Tensor:
        return row


class Fp8Impl(Impl):
    """The same into bytes."""

    def stored(self, row: torch.Tensor) -> torch.Tensor:
        return row.to(torch.float8_e4m3fn).view(torch.uint8)


class Attention(nn.Module):
    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.impl, self.dtype, self.kv_cache_dtype = Impl(), torch.float32, "auto"
        self.kv_cache = torch.zeros(BLOCKS, HEADS, BLOCK, 2 * DIM)
        self.runner = [runner]

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        shape = (-1, HEADS, DIM)
        self.impl.do_kv_cache_update(self, key.view(shape), value.view(shape), self.kv_cache, self.runner[0].slots)
        return query + value


class Layer(nn.Module):
    def __init__(self, runner: Any, rotary: nn.Module) -> None:
        super().__init__()
        self.norm, self.rotary_emb, self.unused = nn.Identity(), rotary, nn.Identity()
        self.self_attn = nn.Module()
        self.self_attn.attn = Attention(runner)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.rotary_emb(self.norm(hidden))
        key = hidden + torch.arange(HEADS).repeat_interleave(DIM)
        return self.self_attn.attn(hidden, key, key + 0.5), residual + 1


class Model(nn.Module):
    def __init__(self, runner: Any) -> None:
        super().__init__()
        rotary = nn.Identity()
        self.layers = nn.ModuleList([Layer(runner, rotary) for _ in range(2)])
        self.pooler = nn.Identity()

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = input_ids[:, None].expand(-1, WIDTH).float()
        residual = hidden.clone()
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        self.pooler(hidden[-1:])
        return hidden


class Runner:
    """`step({"a": (first, count), …})` runs one call; `new` and `resumed` say which blocks requests are given."""

    def __init__(self) -> None:
        self.model = Model(self)
        context = {f"layers.{layer}.self_attn.attn": self.model.layers[layer].self_attn.attn for layer in range(2)}
        self.compilation_config = types.SimpleNamespace(static_forward_context=context)
        spec = types.SimpleNamespace(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, head_size_v=DIM)
        group = types.SimpleNamespace(layer_names=list(context), kv_cache_spec=spec)
        self.kv_cache_config = types.SimpleNamespace(kv_cache_groups=[group])
        self.input_batch: Any = types.SimpleNamespace(req_ids=[])
        self.tables: dict[str, list[int]] = {}
        self.slots = torch.empty(0)

    def get_model(self) -> Model:
        return self.model

    def execute_model(self, output: Any) -> torch.Tensor:
        given = [item.block_ids for item in output.scheduled_new_reqs] + output.scheduled_cached_reqs.new_block_ids
        for block in [block for tables in given for block in (tables[0] if tables else [])]:
            for layer in self.model.layers:
                layer.self_attn.attn.kv_cache[block] = -7  # what is given anew is written over
        ids, positions, slots = [], [], []
        for name, first in output.order:
            for position in range(first, first + output.num_scheduled_tokens[name]):
                ids.append(100 * (ord(name) - ord("a")) + position)
                positions.append(position)
                slots.append(self.tables[name][position // BLOCK] * BLOCK + position % BLOCK)
        padding = 2 if output.padded else 0
        self.slots = torch.tensor(slots + [BLOCK * BLOCKS - 1] * padding)
        result: torch.Tensor = self.model(
            input_ids=torch.tensor(ids + [0] * padding), positions=torch.tensor(positions + [0] * padding)
        )
        return result

    def step(
        self,
        runs: dict[str, tuple[int, int]],
        *,
        new: dict[str, list[int]] | None = None,
        more: dict[str, list[int]] | None = None,
        resumed: tuple[str, ...] = (),
        padded: bool = False,
    ) -> torch.Tensor:
        """One call that runs `runs`: request -> (first position, tokens). `new`: blocks of requests that begin,
        `more`: blocks added to, or of `resumed` requests in place of, those they have."""
        new, more = new or {}, more or {}
        for name, blocks in new.items():
            self.tables[name] = list(blocks)
        for name, blocks in more.items():
            self.tables[name] = list(blocks) if name in resumed else self.tables[name] + blocks
        beginning = [
            types.SimpleNamespace(
                req_id=f"engine-{name}", block_ids=(list(blocks),), num_computed_tokens=runs[name][0],
                prompt_token_ids=[0] * 3, sampling_params=types.SimpleNamespace(extra_args={"assay_id": name}),
            )
            for name, blocks in new.items()
        ]  # fmt: skip
        others = [name for name in runs if name not in new]
        cached = types.SimpleNamespace(
            req_ids=[f"engine-{name}" for name in others],
            resumed_req_ids={f"engine-{name}" for name in resumed},
            new_block_ids=[(more[name],) if name in more else None for name in others],
            num_computed_tokens=[runs[name][0] for name in others],
        )
        if self.input_batch is not None:
            self.input_batch.req_ids = [f"engine-{name}" for name in runs]
        counts = {name: count for name, (_, count) in runs.items()}
        output = types.SimpleNamespace(
            scheduled_new_reqs=beginning,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=_Counts(counts),
            order=[(name, first) for name, (first, _) in runs.items()],
            padded=padded,
        )
        return self.execute_model(output)


class _Counts(dict[str, int]):
    """Known under the engine's id, as vLLM has it, and under the short one, for this stand-in."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__({f"engine-{name}": count for name, count in counts.items()})
        self._counts = counts

    def __missing__(self, name: str) -> int:
        return self._counts[name]
