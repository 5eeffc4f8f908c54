"""The store: hits are exact, misses compute once, damaged entries are never served, a broken cache fails no run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.errors import ConfigurationError, InputMismatchError, ReferenceError_
from accuracy_core.goldens import entry, get_or_compute_goldens, get_or_compute_many, golden_key
from accuracy_core.goldens.disk import DiskTier
from accuracy_core.goldens.metadata import DATA_NAME, METADATA_NAME

from .helpers import CONFIG, DAMAGES, KEY, Compute, entry_folder, equal


def test_miss_computes_and_hit_is_exact(cache: Path) -> None:
    compute = Compute()
    first = get_or_compute_goldens(CONFIG, compute, cache_dir=cache, provenance={"who": "a test"})
    second = get_or_compute_goldens(dict(reversed(CONFIG.items())), compute, cache_dir=cache)
    assert compute.calls == 1
    assert (first.source, second.source) == ("computed", "disk")
    assert first.key == second.key == KEY
    assert equal(first, compute.tensors())
    assert equal(second, compute.tensors())
    assert second.metadata.key_config == CONFIG
    assert second.metadata.provenance == {"who": "a test"}
    assert first.warnings == second.warnings == ()
    with pytest.raises(KeyError):
        second["other"]


def test_bfloat16_values_are_stored_in_half_the_bytes_without_loss(cache: Path) -> None:
    extremes = torch.tensor([0.0, -0.0, 2.0**-133, -(2.0**127), 1 + 2**-7, 3.389531389251535e38])
    not_exact = torch.tensor([1.0, 1 + 2**-8])
    get_or_compute_goldens(CONFIG, lambda: {"a": [extremes, not_exact]}, cache_dir=cache)
    golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
    assert [record.stored_dtype for record in golden.metadata.tensors["a"]] == ["bfloat16", "float32"]
    on_disk = load_file(entry_folder(cache) / DATA_NAME)
    assert [on_disk[f"a/{i}"].dtype for i in range(2)] == [torch.bfloat16, torch.float32]
    for given, read in zip((extremes, not_exact), golden["a"], strict=True):
        assert torch.equal(given.view(torch.int32), read.view(torch.int32))  # bit for bit, the sign of zero included


def test_views_and_shared_memory_are_stored(cache: Path) -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4) + 0.001
    get_or_compute_goldens(CONFIG, lambda: {"a": [base.T, base[1], base, base]}, cache_dir=cache)
    golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
    assert equal(golden, {"a": [base.T, base[1], base, base]})


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_quarantined_and_repaired(damage: str, cache: Path, warnings: pytest.LogCaptureFixture) -> None:
    compute = Compute()
    get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    DAMAGES[damage](entry_folder(cache))
    golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert equal(golden, compute.tensors())
    assert golden.source == "computed"
    assert compute.calls == 2
    assert len(warnings.records) == 1
    assert "quarantined" in warnings.text
    assert len(golden.warnings) == 1
    assert len(list((cache / "quarantine").iterdir())) == 1
    assert not (entry_folder(cache).parent / "was-run").exists()
    again = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert (again.source, compute.calls) == ("disk", 2)
    assert equal(again, compute.tensors())


def test_damage_after_a_verified_read_is_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_SETTLING_TIME_S", 0.0)
    compute = Compute()
    get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert get_or_compute_goldens(CONFIG, compute, cache_dir=cache).source == "disk"
    time.sleep(0.02)  # past one tick of the file system's clock
    DAMAGES["bit in the last tensor"](entry_folder(cache))
    assert get_or_compute_goldens(CONFIG, compute, cache_dir=cache).source == "computed"


def test_data_is_hashed_once_per_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_SETTLING_TIME_S", 0.0)
    get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
    hashed: list[int] = []
    original = entry.hashlib.file_digest
    monkeypatch.setattr(entry.hashlib, "file_digest", lambda *a: hashed.append(1) or original(*a))
    monkeypatch.setattr(entry, "_verified", {})
    for _ in range(3):
        get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
    assert len(hashed) == 1


def test_foreign_entry_is_not_served(cache: Path, warnings: pytest.LogCaptureFixture) -> None:
    other = {**CONFIG, "output_length": 9}
    get_or_compute_goldens(other, Compute(seed=1), cache_dir=cache)
    folder = entry_folder(cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.rename(entry_folder(cache, golden_key(other)), folder)
    compute = Compute(seed=2)
    golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert equal(golden, compute.tensors())
    assert "another key" in warnings.text


def test_reader_keeps_its_data_when_the_entry_goes(cache: Path) -> None:
    compute = Compute()
    get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert DiskTier(cache).remove(KEY)
    get_or_compute_goldens(CONFIG, Compute(seed=5), cache_dir=cache)
    assert equal(golden, compute.tensors())


def test_leftovers_of_dead_writers_are_removed(cache: Path) -> None:
    dead = cache / "tmp" / "0123"
    dead.mkdir(parents=True)
    (dead / DATA_NAME).write_bytes(b"half")
    with DiskTier(cache).temporary() as alive:
        (alive / DATA_NAME).write_bytes(b"half")
        get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
        assert not dead.exists()
        assert alive.exists()


# --- what compute may return ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_golden_is_refused_and_not_stored(value: float, cache: Path) -> None:
    tensor = torch.zeros(3, 4)
    tensor[1, 2] = value
    with pytest.raises(ReferenceError_, match=r"a\[1\] has 1 of 12") as caught:
        get_or_compute_goldens(CONFIG, lambda: {"a": [torch.zeros(2), tensor]}, cache_dir=cache)
    assert caught.value.fix
    assert not entry_folder(cache).exists()
    assert get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache).source == "computed"


@pytest.mark.parametrize(
    "result",
    [None, {}, [torch.zeros(1)], {"a": torch.zeros(1)}, {"a": [1.0]}, {"a/b": [torch.zeros(1)]}, {1: [torch.zeros(1)]}],
)
def test_what_is_no_golden_is_refused(result: Any, cache: Path) -> None:
    with pytest.raises(InputMismatchError):
        get_or_compute_goldens(CONFIG, lambda: result, cache_dir=cache)
    assert not entry_folder(cache).exists()


def test_error_of_compute_is_passed_on_and_the_lock_is_free(cache: Path) -> None:
    def fail() -> dict[str, list[torch.Tensor]]:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        get_or_compute_goldens(CONFIG, fail, cache_dir=cache)
    golden = get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache, lock_timeout_s=0.0)
    assert golden.warnings == ()
    assert not list((cache / "tmp").iterdir())


# --- several at once -----------------------------------------------------------------------------------------------


def test_only_missing_goldens_are_computed_in_one_call(cache: Path) -> None:
    configs = [{**CONFIG, "n": n} for n in (0, 1, 2, 1)]
    get_or_compute_goldens(configs[1], Compute(seed=1), cache_dir=cache)
    asked: list[list[int]] = []

    def compute(indices: list[int]) -> Any:
        asked.append(indices)
        return (Compute(seed=index).tensors() for index in indices)

    goldens = get_or_compute_many(configs, compute, cache_dir=cache)
    assert asked == [[0, 2]]
    assert [golden.source for golden in goldens] == ["computed", "disk", "computed", "disk"]
    for golden, seed in zip(goldens, (0, 1, 2, 1), strict=True):
        assert equal(golden, Compute(seed=seed).tensors())


def test_finished_goldens_survive_a_later_failure(cache: Path) -> None:
    configs = [{**CONFIG, "n": n} for n in (0, 1)]

    def compute(_: list[int]) -> Any:
        yield Compute().tensors()
        raise RuntimeError("died in the second")

    with pytest.raises(RuntimeError):
        get_or_compute_many(configs, compute, cache_dir=cache)
    assert get_or_compute_goldens(configs[0], Compute(), cache_dir=cache).source == "disk"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_goldens(count: int, cache: Path) -> None:
    with pytest.raises(InputMismatchError, match="were asked for"):
        get_or_compute_many(
            [{"n": 0}, {"n": 1}], lambda _: [Compute().tensors() for _ in range(count)], cache_dir=cache
        )


# --- size limit -----------------------------------------------------------------------------------------------------


def test_least_recently_used_entries_go_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [{**CONFIG, "n": n} for n in range(4)]
    keys = [golden_key(config) for config in configs]
    for config in configs[:3]:
        get_or_compute_goldens(config, Compute(), cache_dir=cache)
    for age, key in enumerate(reversed(keys[:3])):
        os.utime(entry_folder(cache, key) / METADATA_NAME, (1e9 - age, 1e9 - age))
    get_or_compute_goldens(configs[0], Compute(), cache_dir=cache)  # the oldest is used again
    size = sum(path.stat().st_size for path in entry_folder(cache, keys[0]).iterdir())
    monkeypatch.setenv("ASSAY_GOLDENS_MAX_BYTES", str(3 * size + size // 2))
    get_or_compute_goldens(configs[3], Compute(), cache_dir=cache)
    assert set(DiskTier(cache).keys()) == {keys[0], keys[2], keys[3]}
    monkeypatch.setenv("ASSAY_GOLDENS_MAX_BYTES", "1")
    get_or_compute_goldens({**CONFIG, "n": 9}, Compute(), cache_dir=cache)
    assert DiskTier(cache).keys() == [golden_key({**CONFIG, "n": 9})]  # what was just computed stays


def test_an_entry_being_computed_is_not_evicted(cache: Path) -> None:
    get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
    disk = DiskTier(cache)
    with disk.locked([KEY], timeout_s=1, warn=pytest.fail):
        assert disk.evict(0) == []
    assert disk.evict(0) == [KEY]


def test_bad_size_limit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_GOLDENS_MAX_BYTES", "10GB")
    with pytest.raises(ConfigurationError, match="10GB"):
        get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)


def test_bad_s3_uri_is_refused_before_computing(cache: Path) -> None:
    compute = Compute()
    with pytest.raises(ConfigurationError, match="S3 URI"):
        get_or_compute_goldens(CONFIG, compute, cache_dir=cache, s3_uri="http://bucket")
    assert compute.calls == 0
