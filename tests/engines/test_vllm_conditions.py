"""Batches, pieces and cached prefixes in the real vLLM: they take place, leave logits alone, and their faults show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.engines.protocol import ConditionalEngine
from accuracy_core.faults import FAULTS
from accuracy_core.schemas import EngineSpec, FaultSpec, ReplayConditions, ReplayConduct, ReplayRequest

pytestmark = pytest.mark.slow

BLOCK, CHUNK = 32, 24
LENGTHS = (40, 50, 100)
PLAIN = ReplayConditions()
#: by the capability that each needs
CONDITIONS = {
    "batching": ReplayConditions(together=True),
    "chunked_prefill": ReplayConditions(prefill_chunk=CHUNK),
    "prefix_caching": ReplayConditions(read_prefixes=True),
}
SERVING_FAULTS = [name for name, fault in FAULTS.items() if fault.condition is not None]


@pytest.fixture(scope="module")
def engine(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineVllmEngine]:
    """In FP32, where kernels that sum in another order differ by 1e-6."""
    spec = EngineSpec(
        model="embedded", python=str(engine_python), dtype="float32", max_model_len=128,
        engine_args={"enable_prefix_caching": True, "block_size": BLOCK},
    )  # fmt: skip
    with OfflineVllmEngine(spec, scratch=tmp_path_factory.mktemp("conditions")) as engine:
        yield engine


@pytest.fixture(scope="module")
def requests() -> list[ReplayRequest]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for length in LENGTHS:
        ids = torch.randint(4, 100, (length + 8,), generator=generator).tolist()
        made.append(
            ReplayRequest(request_id=f"r{length}", prompt_token_ids=ids[:length], forced_token_ids=ids[length:])
        )
    return made


def run(
    engine: OfflineVllmEngine, requests: list[ReplayRequest], conditions: ReplayConditions
) -> tuple[list[torch.Tensor], list[ReplayConduct]]:
    """Rows (tokens, vocab) and conduct of each request. The cache holds the prompts, as an earlier run left them."""
    engine.replay_under(requests, ReplayConditions(forget_prefixes=True))
    results = engine.replay_under(requests, conditions)
    assert [result.error for result in results] == [None] * len(requests)
    assert [result.token_ids for result in results] == [request.forced_token_ids for request in requests]
    conducts = [result.conduct for result in results if result.conduct is not None]
    return [load_file(str(result.tensors))["logits"] for result in results], conducts


def apart(rows: list[torch.Tensor], others: list[torch.Tensor]) -> list[float]:
    """Largest relative difference of a row, per request."""
    return [
        float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max()) for a, b in zip(rows, others, strict=True)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def plain(engine: OfflineVllmEngine, requests: list[ReplayRequest]) -> list[torch.Tensor]:
    rows, conducts = run(engine, requests, PLAIN)
    assert conducts == [ReplayConduct(prefill_chunks=[length]) for length in LENGTHS], "one at a time, whole, computed"
    return rows


def test_the_probe_found_every_condition(engine: OfflineVllmEngine) -> None:
    assert isinstance(engine, ConditionalEngine)
    assert all(getattr(engine.capabilities, name) for name in CONDITIONS), engine.probe["reasons"]


def test_an_emptied_cache_gives_nothing(engine: OfflineVllmEngine, requests: list[ReplayRequest]) -> None:
    engine.replay(requests)
    results = engine.replay_under(requests, ReplayConditions(read_prefixes=True, forget_prefixes=True))
    assert [result.conduct.cached_tokens for result in results if result.conduct] == [0] * len(LENGTHS)


@pytest.mark.parametrize(
    ("conditions", "conducts"),
    [
        (CONDITIONS["batching"], [ReplayConduct(prefill_chunks=[length], largest_batch=3) for length in LENGTHS]),
        (
            CONDITIONS["chunked_prefill"],
            [ReplayConduct(prefill_chunks=pieces) for pieces in ([24, 16], [24, 24, 2], [24, 24, 24, 24, 4])],
        ),
        (
            CONDITIONS["prefix_caching"],
            [ReplayConduct(cached_tokens=hit, prefill_chunks=[rest]) for hit, rest in ((32, 8), (32, 18), (96, 4))],
        ),
        (
            ReplayConditions(together=True, prefill_chunk=16, read_prefixes=True),
            [
                ReplayConduct(cached_tokens=hit, prefill_chunks=pieces, largest_batch=3)
                for hit, pieces in ((32, [8]), (32, [16, 2]), (96, [4]))
            ],
        ),
    ],
    ids=["batched", "in pieces", "from the cache", "all at once"],
)
def test_clean_logits_do_not_depend_on_how_they_are_served(
    engine: OfflineVllmEngine, requests: list[ReplayRequest], plain: list[torch.Tensor],
    conditions: ReplayConditions, conducts: list[ReplayConduct],
) -> None:  # fmt: skip
    rows, found = run(engine, requests, conditions)
    assert found == conducts
    assert max(apart(rows, plain)) < 1e-5


@pytest.mark.parametrize("name", SERVING_FAULTS)
def test_a_fault_of_serving_changes_its_condition_alone(
    engine: OfflineVllmEngine, requests: list[ReplayRequest], plain: list[torch.Tensor], name: str
) -> None:
    without = {other: run(engine, requests, conditions)[0] for other, conditions in CONDITIONS.items()}
    engine.set_fault(FaultSpec(name=name))
    try:
        assert max(apart(run(engine, requests, PLAIN)[0], plain)) == 0.0
        for other, conditions in CONDITIONS.items():
            rows, _ = run(engine, requests, conditions)
            if other == FAULTS[name].condition:
                assert min(apart(rows, plain)) > 0.01
            else:
                assert max(apart(rows, without[other])) == 0.0, other
    finally:
        engine.set_fault(None)
    for other, conditions in CONDITIONS.items():
        assert max(apart(run(engine, requests, conditions)[0], without[other])) == 0.0, f"{name} is still there"


def test_what_another_fault_left_in_the_cache_is_not_read(
    engine: OfflineVllmEngine, requests: list[ReplayRequest], plain: list[torch.Tensor]
) -> None:
    engine.set_fault(FaultSpec(name="mlp-scale", strength=1.5))
    engine.replay(requests)
    engine.set_fault(None)
    results = engine.replay_under(requests, CONDITIONS["prefix_caching"])
    assert max(apart([load_file(str(result.tensors))["logits"] for result in results], plain)) < 1e-5
