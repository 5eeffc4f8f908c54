from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.logits import compare_prompts, logit_validation, multi_prompt_logit_validation
from accuracy_core.logits.logit_visualization import visualize_logit_results, visualize_logits
from accuracy_core.logits.panels import logit_panels, ratio_panels

from .shared_cases import Replay, load, per_prompt

make = load("make_cases")
TOKENS, V = 9, 600


@pytest.fixture(scope="module")
def sides() -> tuple[torch.Tensor, ...]:
    """f, e, t (tokens, batch 2, vocab); token 4 of batch row 1 picks another id, one logit of token 6 is NaN."""
    f = make.base(1, 2, TOKENS, V)
    e, t = make.noisy(f, 2), make.noisy(f, 3)
    t[1, 4, 17] = 40.0
    t[1, 6, 3] = math.nan
    return tuple(x.transpose(0, 1).contiguous() for x in (f, e, t))


def test_validation_writes_the_documented_files_with_all_tokens(
    sides: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    f, e, t = sides
    target = Replay([t])
    passed = logit_validation(
        target.inputs()[0], target, e, baseline_logits=f, visualize=True, output_dir=str(tmp_path / "out")
    )
    assert passed is False
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "logit_analysis_b0.html", "logit_analysis_b1.html", "logit_analysis_summary.json", "reference_logits.pt",
        "target_logits.pt",
    ]  # fmt: skip
    saved = torch.load(tmp_path / "out" / "target_logits.pt", weights_only=True)
    assert torch.equal(saved.nan_to_num(7), t.nan_to_num(7))
    assert torch.equal(torch.load(tmp_path / "out" / "reference_logits.pt", weights_only=True), e)


def test_validation_writes_nothing_unasked(
    sides: tuple[torch.Tensor, ...], tmp_path: Path, monkeypatch: object
) -> None:
    f, e, _ = sides
    target = Replay([f.clone()])
    monkeypatch.chdir(tmp_path)  # type: ignore[attr-defined]
    assert logit_validation(target.inputs()[0], target, e, baseline_logits=f, save_logits=False)
    multi_prompt_logit_validation(target.inputs(), target, [e], [f])
    assert list(tmp_path.iterdir()) == []


def test_multi_prompt_saves_per_prompt(sides: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    f, e, _ = sides
    target = Replay([f.clone(), f.clone()])
    multi_prompt_logit_validation(target.inputs(), target, [e, e], [f, f], save_logits=True, output_dir=str(tmp_path))
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.pt")) == [
        "prompt_0/reference_logits.pt", "prompt_0/target_logits.pt",
        "prompt_1/reference_logits.pt", "prompt_1/target_logits.pt",
    ]  # fmt: skip


def test_pages_are_self_contained_and_the_summary_is_strict_json(
    sides: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    result = compare_prompts([sides[0]], [sides[1]], [sides[2]])
    _, per_batch = result.per_prompt_results[0]
    visualize_logit_results(per_batch, str(tmp_path), max_tokens=5)
    page = (tmp_path / "logit_analysis_b1.html").read_text()
    assert page.count("plotly.js v") >= 1
    assert not re.findall(
        r'(?:src|href)="?(?:https?:)?//', page.split("plotly.js v")[0] + page.rsplit("</script>", 1)[1]
    )
    text = (tmp_path / "logit_analysis_summary.json").read_text()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    summary = json.loads(text, parse_constant=refuse)
    first, second = summary["batches"]
    assert (first["tokens"], first["bad_tokens"], second["bad_tokens"]) == (TOKENS, [], [4, 6])
    assert second["diverged_tokens"] == [4]
    assert second["max_l2_ratio"] == "Infinity"
    assert len(second["per_token"]) == TOKENS
    visualize_logit_results(per_batch, str(tmp_path), save_logits=False)
    assert "per_token" not in json.loads((tmp_path / "logit_analysis_summary.json").read_text())["batches"][0]


def test_direct_visualization(sides: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    visualize_logits(
        target_logits=sides[1], baseline_logits=sides[0], output_dir=str(tmp_path), tol_map={"7": (0, 0.5)}
    )
    summary = json.loads((tmp_path / "logit_analysis_summary.json").read_text())
    assert list(summary["batches"][0]["max_error"]) == ["7"]
    assert (tmp_path / "logit_analysis_b1.html").exists()


def test_four_panels_show_what_is_documented(sides: tuple[torch.Tensor, ...]) -> None:
    rows = [r for r in compare_prompts([sides[0]], [sides[1]], [sides[2]]).rows if r.batch == 1]
    figure = logit_panels(rows)
    traces = {t.name: t for t in figure.data}
    assert {"k=5", "k=50", "k=1000", "k=all"} <= set(traces)
    assert {t.yaxis for t in figure.data} == {"y", "y2", "y3", "y4"}
    assert traces["expected top-1"].line.color == "cyan"
    assert "pink" in traces["actual top-1"].line.color
    assert list(traces["expected top-1"].x) == list(range(TOKENS))
    assert traces["actual top-1"].y[4] == 17
    assert traces["expected gap"].y[0] == pytest.approx(rows[0].expected_top2[0] - rows[0].expected_top2[1])
    assert traces["ULP"].y[0] == rows[0].ulp
    lines = [s for s in figure.layout.shapes if s.x0 == s.x1]
    assert [(s.x0, s.line.color) for s in lines] == [(4, "orange")]
    assert figure.layout.xaxis4.title.text.startswith("token")


def test_ratio_panels_show_guards_and_their_limits(sides: tuple[torch.Tensor, ...]) -> None:
    rows = [r for r in compare_prompts([sides[0]], [sides[1]], [sides[2]]).rows if r.batch == 1]
    figure = ratio_panels(rows)
    traces = {t.name: t for t in figure.data}
    assert traces["L2 ratio"].y[0] == rows[0].l2_ratio
    assert traces["L2 ratio"].y[6] is None, "an infinite value is a gap, not an invalid number"
    assert list(traces["guard fired"].x) == [4, 6]
    limits = {"L2 guard 3": 3.0, "L-inf guard 5": 5.0, "diagnostic multiplier 1.5": 1.5, "pooled BC limit 0.99": 0.99}
    assert {name: traces[name].y[0] for name in limits} == limits
    json.loads(figure.to_json())


def test_token_texts_are_escaped(sides: tuple[torch.Tensor, ...]) -> None:
    rows = [r for r in compare_prompts([sides[0]], [sides[1]], [sides[2]]).rows if r.batch == 0]
    evil = ["</script><img src=x onerror=alert(1)>"] * TOKENS
    page = logit_panels(rows, evil).to_html(include_plotlyjs=False)
    assert "<img" not in page
    assert "onerror" in page


def test_panels_of_no_rows() -> None:
    assert logit_panels([]).data
    assert ratio_panels([]).data


@pytest.mark.parametrize(
    ("results", "options", "message"),
    [
        ([], {}, "no results"),
        ([[]], {}, "no results"),
        ([[{"token": 1}]], {}, "not those"),
        ([["text"]], {}, "not those"),
        ([[{}]], {"max_tokens": 0}, "max_tokens"),
    ],
)
def test_results_of_another_form(results: list, options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        visualize_logit_results(results, str(tmp_path), **options)


def test_folder_that_is_a_file(sides: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = compare_prompts(None, per_prompt(sides[0][None, :, 0]), per_prompt(sides[1][None, :, 0]))
    with pytest.raises(ConfigurationError, match="cannot write"):
        visualize_logit_results(result.results(0), str(tmp_path / "file"))
