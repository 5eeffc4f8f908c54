"""The nightly matrix: a product of axes, in which a mistake stays in its row."""

from __future__ import annotations

import pytest

from accuracy_core.errors import ConfigurationError
from flows.matrix import load_matrix, matrix_file, merged

MATRIX = """
defaults:
  evaluation: {limit: 5}
models:
  - name: small
    engine: {model: embedded}
  - name: large
    engine: {model: /models/large, tensor_parallel_size: 8}
devices:
  - name: cpu
    engine: {platform: cpu}
  - name: trn
    pool: trn-pool
    engine: {platform: neuron}
tasks:
  - name: arith
    evaluation: {tasks: [assay_arith]}
  - name: typo
    evaluation: {taks: [assay_arith]}
exclude:
  - {model: large, device: cpu}
rows:
  - name: extra
    engine: {model: embedded, dtype: float32}
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "matrix.yaml"
        path.write_text(text)
        return path

    return to_file


def test_the_rows_are_the_product_without_what_is_excluded_and_the_single_ones(write):
    rows = load_matrix(write(MATRIX))
    assert [row.name for row in rows] == [
        "small/cpu/arith", "small/cpu/typo", "small/trn/arith", "small/trn/typo", "large/trn/arith", "large/trn/typo",
        "extra",
    ]  # fmt: skip
    row = rows[4]
    assert row.parameters.engine.model == "/models/large"
    assert row.parameters.engine.tensor_parallel_size == 8
    assert row.parameters.engine.platform.value == "neuron"
    assert (row.parameters.evaluation.tasks, row.parameters.evaluation.limit) == (["assay_arith"], 5)
    assert (row.placement.device_pool, row.placement.queue) == ("trn-pool", "nightly")
    assert rows[0].placement.device_pool == "device-pool"


def test_a_typo_is_the_problem_of_its_own_rows_only(write):
    rows = load_matrix(write(MATRIX))
    bad = [row for row in rows if row.parameters is None]
    assert [row.name for row in bad] == ["small/cpu/typo", "small/trn/typo", "large/trn/typo"]
    assert all("evaluation.taks" in row.problem for row in bad)
    assert all(not row.problem for row in rows if row.parameters is not None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [", "cannot be read"),
        ("- 1", "holds no mapping"),
        ("modles: []", "unknown sections: modles"),
        ("models: []", "has no row"),
        ("models: embedded", "is no list"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused(write, text, said):
    with pytest.raises(ConfigurationError, match=said):
        load_matrix(write(text))


def test_a_row_that_is_no_mapping_is_a_problem_of_its_own(write):
    rows = load_matrix(write("rows: [3, {name: ok, engine: {model: embedded}}, {name: p, pool: '../x'}]"))
    assert [bool(row.problem) for row in rows] == [True, False, True]


def test_rows_with_the_same_name_stay_apart(write):
    rows = load_matrix(write("rows: [{name: a, engine: {model: m}}, {name: a, engine: {model: n}}]"))
    assert [row.name for row in rows] == ["a", "a#2"]


def test_the_bundled_matrix_has_no_problem(monkeypatch, tmp_path):
    monkeypatch.delenv("ASSAY_NIGHTLY_MATRIX", raising=False)
    assert [row.problem for row in load_matrix(matrix_file(None))] == [""]
    monkeypatch.setenv("ASSAY_NIGHTLY_MATRIX", str(tmp_path / "own.yaml"))
    assert matrix_file(None) == tmp_path / "own.yaml"
    assert matrix_file("given.yaml").name == "given.yaml"


def test_merging_goes_mapping_by_mapping_and_lists_are_replaced():
    assert merged({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": 4}) == {"a": {"b": 1, "c": [3]}, "d": 4}
