"""The golden task: results are references, believed only while the goldens exist; shards on threads and on Dask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from prefect import flow
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from accuracy_core.goldens import generate_three_way_reference_logits
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.order import GoldenOrder
from accuracy_core.models import embedded_model

PROMPTS = [[1, 20, 30], [1, 40, 50, 60], [1, 70], [1, 80, 90], [1, 21]]


def order_in(cache: Path, **change: Any) -> GoldenOrder:
    values = {
        "model_id": "tiny", "model_checkpoint": str(embedded_model()), "prompts": PROMPTS, "output_length": 3,
        "cache_dir": str(cache), "s3_uri": "",
    }  # fmt: skip
    return GoldenOrder(**{**values, **change})


def test_shards_cover_all_prompts_in_order(tmp_path: Path) -> None:
    order = order_in(tmp_path)
    for count, sizes in ((1, [5]), (2, [2, 3]), (3, [1, 2, 2]), (9, [1] * 5)):
        shards = order.shards(count)
        assert [len(shard.prompts) for shard in shards] == sizes
        assert [prompt for shard in shards for prompt in shard.prompts] == PROMPTS
        assert [key for shard in shards for key in shard.golden_keys()] == order.golden_keys()


def test_references_say_where_the_goldens_are(tmp_path: Path) -> None:
    order = order_in(tmp_path, prompts=PROMPTS[:2])
    assert not order.is_held()
    references = order.references()
    assert [reference.key for reference in references] == order.golden_keys()
    for reference in references:
        folder = DiskTier(tmp_path).folder(reference.key)
        assert reference.location == str(tmp_path)
        assert reference.data_bytes == (folder / "golden.safetensors").stat().st_size
    assert order.is_held()
    DiskTier(tmp_path).remove(references[1].key)
    assert not order.is_held()


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    from flows.local_api import local_api

    with local_api() as url:
        yield url


@pytest.mark.slow
def test_result_is_a_reference_and_vanished_goldens_are_computed_again(
    api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.goldens import golden_task, obtain_goldens

    order, computed = order_in(tmp_path / "cache", prompts=PROMPTS[:2]), []
    original = GoldenOrder.references
    monkeypatch.setattr(GoldenOrder, "references", lambda self: computed.append(1) or original(self))
    storage = tmp_path / "results"

    @flow
    def ask() -> Any:
        return obtain_goldens(order)

    @flow
    def state_of_a_hit() -> Any:
        return golden_task(order, return_state=True)

    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: storage}):
        first, again = ask(), ask()
    assert len(computed) == 1  # the second run took the first one's result
    assert first.prompt_keys == again.prompt_keys == order.golden_keys()
    assert again.source == "disk"
    (record,) = [path for path in storage.rglob("*") if path.is_file()]
    assert record.stat().st_size < 4000
    stored = json.loads(json.loads(record.read_text())["result"])
    assert [item["key"] for item in stored] == order.golden_keys()
    DiskTier(tmp_path / "cache").remove(order.golden_keys()[0])
    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: storage}):
        assert ask().prompt_keys == order.golden_keys()
        assert state_of_a_hit().name == "Cached"
    assert len(computed) == 2
    assert order.is_held()


def in_shards(runner: Any, order: GoldenOrder) -> Any:
    from tasks.goldens import obtain_goldens

    @flow(task_runner=runner)
    def ask() -> Any:
        return obtain_goldens(order, shards=2)

    return ask()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "dask"])
def test_shards_give_what_one_computation_gives(kind: str, api: str, tmp_path: Path) -> None:
    order = order_in(tmp_path / "cache")
    if kind == "dask":
        from prefect_dask import DaskTaskRunner

        runner: Any = DaskTaskRunner(
            cluster_kwargs={"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
        )
    else:
        runner = ThreadPoolTaskRunner(max_workers=2)
    goldens = in_shards(runner, order)
    assert goldens.source == "disk"  # nothing was left to compute here
    direct = generate_three_way_reference_logits(str(embedded_model()), "bfloat16", 3, PROMPTS)
    for name in ("fp32_logits", "dtype_logits"):
        assert all(torch.equal(a, b) for a, b in zip(goldens[name], direct[name], strict=True))
    assert goldens["token_ids"] == direct["token_ids"]
