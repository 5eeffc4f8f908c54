from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.bundled import bundled_tasks_dir
from accuracy_core.evals.catalogue import Catalogue
from accuracy_core.evals.preconditions import check_tasks, check_thresholds

SUITE = ["assay_suite"]


def test_bundled_tasks() -> None:
    rows = Catalogue().rows("assay_suite")
    assert rows == {
        "assay_suite": [],
        "assay_arith": ["exact_match,strict-match", "exact_match,flexible-extract"],
        "assay_mc": ["acc,none", "acc_norm,none"],
        "assay_mc_add": ["acc,none", "acc_norm,none"],
        "assay_mc_sub": ["acc,none", "acc_norm,none"],
    }
    assert Catalogue().folders(SUITE) == []


def test_tasks_of_lm_eval_by_their_files() -> None:
    catalogue = Catalogue()
    assert catalogue.rows("gsm8k") == {"gsm8k": ["exact_match,strict-match", "exact_match,flexible-extract"]}
    assert catalogue.rows("hellaswag") == {"hellaswag": ["acc,none", "acc_norm,none"]}
    mmlu = catalogue.rows("mmlu")
    assert mmlu["mmlu"] == ["acc,none"]
    assert mmlu["mmlu_stem"] == ["acc,none"]
    assert len(catalogue.leaves("mmlu")) == 57
    assert set(catalogue.rows("ai2_arc")) == {"arc_easy", "arc_challenge"}, "a tag has no row of its own"
    assert catalogue.rows("longbench_lcc") == {"longbench_lcc": None}, "its metric is a function"


def test_folders_that_lm_eval_has_to_index() -> None:
    catalogue = Catalogue()
    folders = catalogue.folders(["gsm8k", "leaderboard", "leaderboard_bbh", "assay_arith"])
    assert folders is not None
    assert [folder.name for folder in folders] == ["gsm8k", "leaderboard"]
    assert catalogue.folders(["glue"]) is None, "members of a tag may be anywhere"
    assert catalogue.folders(["no_such_task"]) is None


def test_own_tasks(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "output_type: generate_until\nmetric_list: [{metric: rouge1}, {metric: bleu}]\n"
    )
    (tmp_path / "a.yaml").write_text(
        "include: base.yaml\ntask: own_a\ntag: [own_tag, other]\nprocess_docs: !function u.f\n"
    )
    (tmp_path / "b.yaml").write_text(
        "include: base.yaml\ntask: own_b\ntag: own_tag\nfilter_list: [{name: first, filter: []}]\n"
    )
    (tmp_path / "g.yaml").write_text(
        "group: own_group\ntask: [own_a, {group: inner, task: [own_b], aggregate_metric_list: {metric: bleu}}]\n"
        "aggregate_metric_list: [{metric: rouge1, filter_list: [none, first]}, {metric: bleu}]\n"
    )
    (tmp_path / "broken.yaml").write_text("task: [unclosed")
    (tmp_path / "loop.yaml").write_text("include: loop.yaml\ntask: loop\n")
    (tmp_path / "code.yaml").write_text("task: in_python\nclass: !function task.Mine\n")
    catalogue = check_tasks(["own_group", "own_tag", "in_python"], tmp_path)
    assert catalogue.rows("own_group") == {
        "own_group": ["rouge1,none", "rouge1,first", "bleu,none", "bleu,first"],
        "own_a": ["rouge1,none", "bleu,none"],
        "inner": ["bleu,first"],
        "own_b": ["rouge1,first", "bleu,first"],
    }
    assert sorted(catalogue.leaves("own_tag")) == ["own_a", "own_b"]
    assert catalogue.rows("in_python") == {"in_python": None}
    with pytest.raises(ConfigurationError, match="unknown task 'loop'"):
        check_tasks(["loop"], tmp_path)


@pytest.mark.parametrize(
    "thresholds",
    [
        {"assay_arith/exact_match,strict-match": 0.8},
        {"exact_match,flexible-extract": 0.8},
        {"assay_mc/acc,none": {"mean": 0.9, "std": 0.05}},
        {"assay_mc_sub/acc_norm,none": {"min_of_reference": 0.9}},
        {},
    ],
)
def test_thresholds_that_will_be_met_by_a_score(thresholds: dict[str, Any]) -> None:
    check_thresholds(thresholds, SUITE)


@pytest.mark.parametrize(
    ("thresholds", "listed"),
    [
        ({"exact_match": 0.8}, "assay_arith/exact_match,strict-match"),
        ({"acc,none": 0.8}, "assay_mc/acc,none"),
        ({"assay_arith/exact_match,strict": 0.8}, "assay_arith/exact_match,strict-match"),
        ({"assay_suite/acc,none": 0.8}, "assay_mc/acc,none"),
        ({"gsm8k/exact_match,strict-match": 0.8}, "assay_arith/exact_match,strict-match"),
        ({"assay_mc/acc,none": "high"}, "a number"),
        ({"exact_match,strict-match": 41}, "write 0.41"),
    ],
)
def test_thresholds_that_cannot_be_met(thresholds: dict[str, Any], listed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_thresholds(thresholds, SUITE)
    assert listed in str(caught.value)


def test_a_task_whose_metrics_are_not_known_is_trusted() -> None:
    check_thresholds({"longbench_lcc/code_sim_score,none": 0.1, "anything,none": 0.2}, ["longbench_lcc"])


def test_a_metric_is_a_proportion_where_the_task_file_lists_it_only() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)f1 lies between 0 and 1.*write 0\.62"):
        check_thresholds({"f1,none": 62}, ["coqa"])
    check_thresholds({"f1,none": 0.62}, ["coqa"])
    check_thresholds({"squadv2/f1,none": 62}, ["squadv2", "coqa"])


def test_near_names() -> None:
    with pytest.raises(ConfigurationError, match="'assay_suite'"):
        check_tasks(["assay_siute"])
    with pytest.raises(ConfigurationError, match="'gsm8k'"):
        check_tasks(["gsm8"])
    with pytest.raises(ConfigurationError, match="unknown task"):
        check_tasks(["qqqqqqqqqqqqqqqq"])


def test_looking_up_imports_no_lm_eval() -> None:
    import subprocess
    import sys

    code = (
        "import sys, accuracy_core.evals.preconditions as p, accuracy_core.evals.analysis\n"
        "p.check_thresholds({'exact_match,strict-match': .5}, ['gsm8k'])\n"
        "heavy = ('lm_eval', 'transformers', 'datasets', 'torch', 'pandas', 'scipy')\n"
        "sys.exit(sum(name in sys.modules for name in heavy))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_bundled_file_is_parsed() -> None:
    names = {path.stem for path in bundled_tasks_dir().glob("*.yaml")} - {"_assay_mc_template"}
    assert names <= set(Catalogue().names())
