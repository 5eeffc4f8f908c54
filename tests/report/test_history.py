"""The history: every run once, in one order for all readers whatever their clocks say, and worse is marked."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.report.history import HistoryEntry, HistoryIndex, HistoryScore, HistoryWindow
from accuracy_core.report.history_marks import marks
from accuracy_core.report.sections.history import HistorySection
from accuracy_core.schemas import RunDir

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
KEY = "t/acc,none"


def entry(value: float = 0.9, **more: Any) -> HistoryEntry:
    given: dict[str, Any] = {
        "written": NOW, "model": "tiny", "model_fingerprint": "f" * 64, "device": "cpu-vllm-tp1", "settings": "s",
        "outcome": Outcome.NUMERICS, "verdict": Verdict.PASS, "sigma_ratio": 1.0, "agg_bc": 0.999,
        "scores": {KEY: HistoryScore(value=value, stderr=0.02)}, "stage_s": {"evaluate": 100.0, "goldens": 5.0},
    }  # fmt: skip
    return HistoryEntry(**{**given, **more})


def test_runs_come_back_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    index = HistoryIndex(str(tmp_path))
    for days in (0, -400, 9000, -3):  # the clocks of four hosts
        index.append(entry(written=NOW + timedelta(days=days)))
    found = index.window("f" * 64, "cpu-vllm-tp1").entries
    assert [item.sequence for item in found] == [1, 2, 3, 4]
    assert [(item.written - NOW).days for item in found] == [0, -400, 9000, -3]
    assert [item.sequence for item in index.window("f" * 64, "cpu-vllm-tp1", last=2).entries] == [3, 4]


def test_models_and_devices_are_kept_apart(tmp_path: Path) -> None:
    index = HistoryIndex(str(tmp_path))
    index.append(entry())
    index.append(entry(device="neuron-vllm-tp8"))
    index.append(entry(model_fingerprint="e" * 64))
    for fingerprint, device in (("f", "cpu-vllm-tp1"), ("f", "neuron-vllm-tp8"), ("e", "cpu-vllm-tp1")):
        assert len(index.window(fingerprint * 64, device).entries) == 1
    assert index.window("d" * 64, "cpu-vllm-tp1").entries == []


def test_writers_at_the_same_moment_lose_nothing_and_all_readers_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: HistoryIndex(str(tmp_path)).append(entry(headline=str(i))), range(40)))
    orders = [[item.headline for item in HistoryIndex(str(tmp_path)).window("f" * 64, "cpu-vllm-tp1", last=99).entries]
              for _ in range(2)]  # fmt: skip
    assert sorted(orders[0], key=int) == [str(i) for i in range(40)]
    assert orders[0] == orders[1]


def test_a_damaged_file_costs_only_itself_and_strangers_are_ignored(tmp_path: Path) -> None:
    index = HistoryIndex(str(tmp_path))
    for _ in range(3):
        index.append(entry())
    (folder,) = tmp_path.iterdir()
    damaged = sorted(folder.iterdir())[1]
    damaged.write_bytes(b"\xff{")
    (folder / "notes.json").write_text("{}")
    (folder / f".{damaged.name}.tmp").write_text("half")
    window = index.window("f" * 64, "cpu-vllm-tp1")
    assert [item.sequence for item in window.entries] == [1, 3]
    assert window.skipped == [damaged.name]
    assert index.append(entry()).sequence == 4


def test_names_cannot_lead_out_of_the_index(tmp_path: Path) -> None:
    HistoryIndex(str(tmp_path / "h")).append(entry(device="../../x", model_fingerprint="../../etc"[:9]))
    assert [item.name for item in tmp_path.iterdir()] == ["h"]


def test_an_index_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="history") as caught:
        HistoryIndex(str(tmp_path / "file")).append(entry())
    assert type(caught.value).__name__ == "InfrastructureError"
    with pytest.raises(ConfigurationError):
        HistoryIndex("s3://B_ad/x")


def test_what_got_worse_is_marked() -> None:
    before = [entry(0.90), entry(0.92), entry(0.91), entry(0.90)]
    worse = entry(0.70, verdict=Verdict.FAIL, sigma_ratio=1.6, agg_bc=0.95, stage_s={"evaluate": 180.0, "goldens": 9.0})
    found = marks([*before, worse])
    assert found[:4] == [{}, {}, {}, {}]
    assert set(found[4]) == {"verdict", f"score:{KEY}", "sigma_ratio", "agg_bc", "stage:evaluate"}
    # usual 0.905; standard errors .02 and .02: sqrt(2) * .02 = .02828; .205 / .02828 = 7.2
    assert "7.2 standard errors" in found[4][f"score:{KEY}"]
    assert found[4]["verdict"] == "was pass before"


@pytest.mark.parametrize(
    "harmless",
    [
        {"value": 0.86},  # 1.7 standard errors below
        {"sigma_ratio": 1.4},
        {"agg_bc": 0.992},
        {"stage_s": {"evaluate": 140.0, "goldens": 14.0}},  # a factor alone, on 5 s, is no change
        {"value": 0.99, "sigma_ratio": 0.5, "agg_bc": 1.0, "stage_s": {"evaluate": 1.0}},
        {"sigma_ratio": math.nan, "agg_bc": math.nan, "scores": {}, "stage_s": {}, "verdict": None},
    ],
)
def test_what_an_honest_night_does_is_not_marked(harmless: dict[str, Any]) -> None:
    before = [entry(0.90), entry(0.92), entry(0.91), entry(0.90)]
    assert marks([*before, entry(**harmless)])[4] == {}


def test_only_comparable_runs_count() -> None:
    good, low = [entry(0.9)] * 3, entry(0.5)
    assert f"score:{KEY}" in marks([*good, low])[3]
    assert marks([*good, entry(0.5, settings="other tasks")])[3] == {}
    assert marks([*[entry(0.9, fault="mlp-scale")] * 3, low])[3] == {}
    assert marks([*good[:2], low])[2] == {}  # two are no median
    lower = {"scores": {KEY: HistoryScore(value=2.0, stderr=0.02, higher_is_better=False)}}
    higher = {"scores": {KEY: HistoryScore(value=3.0, stderr=0.02, higher_is_better=False)}}
    assert f"score:{KEY}" in marks([*[entry(**lower)] * 3, entry(**higher)])[3]
    assert marks([*[entry(**higher)] * 3, entry(**lower)])[3] == {}


def test_the_section_shows_runs_newest_first_and_escapes(tmp_path: Path) -> None:
    run_dir = RunDir.at(tmp_path)
    section = HistorySection()
    assert not section.applies(run_dir)
    rows = [entry(0.9, sequence=i) for i in range(1, 5)]
    rows.append(entry(0.5, sequence=5, fault="<b>x</b>", worst_guard="l2_ratio", worst_value=9.5, worst_limit=3.0,
                      location="s3://bucket/<script>", cached=["goldens"], stage_s={"evaluate": 99.0}))  # fmt: skip
    run_dir.write(run_dir.root / "history.json", HistoryWindow(entries=rows, skipped=["<i>.json"]))
    assert section.applies(run_dir)
    html = section.render(run_dir)
    assert html.index(">5</td>") < html.index(">1</td>")
    assert "<script>" not in html
    assert "<b>x</b>" not in html
    assert "<i>.json" not in html
    assert "9.5" in html
    assert "cached" in html
    assert html.count("<svg") == 5  # score, sigma ratio, BC, evaluate, goldens
    assert "worse than the usual 0.9" in html
