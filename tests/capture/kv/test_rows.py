"""Row errors against a plain float64 loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from accuracy_core.capture.kv.rows import measure_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_a_loop_in_float64(dtype):
    g = torch.Generator().manual_seed(1)
    f = torch.randn(2, 5, 8, generator=g)
    b, t = ((f + 0.1 * torch.randn(f.shape, generator=g)).to(dtype) for _ in range(2))
    rows = measure_rows(f, b, t)
    cosine = rows.cosine()
    for head in range(2):
        for position in range(5):
            x, y, z = (np.asarray(side[head, position].float(), np.float64) for side in (f, b, t))
            expected = {
                "ref_l2": np.linalg.norm(x), "ref_linf": np.abs(x).max(), "target_l2": np.linalg.norm(z),
                "l2": np.linalg.norm(z - x), "linf": np.abs(z - x).max(),
                "base_l2": np.linalg.norm(y - x), "base_linf": np.abs(y - x).max(),
            }  # fmt: skip
            for name, value in expected.items():
                assert float(getattr(rows, name)[head, position]) == pytest.approx(value, rel=1e-5), name
            assert float(cosine[head, position]) == pytest.approx(
                x @ z / np.linalg.norm(x) / np.linalg.norm(z), abs=1e-6
            )
    flat_f, flat_t = (np.asarray(side[1].float(), np.float64).ravel() for side in (f, t))
    assert float(rows.head_cosine()[1]) == pytest.approx(
        flat_f @ flat_t / np.linalg.norm(flat_f) / np.linalg.norm(flat_t), abs=1e-6
    )
    assert int(rows.base_cells.sum()) == f.numel()


def test_counts_what_is_not_finite_and_changes_no_input():
    f = torch.ones(1, 3, 4)
    t = f.clone()
    t[0, 1, 2], t[0, 2, 0], t[0, 2, 1] = math.nan, math.inf, -math.inf
    before = t.clone()
    rows = measure_rows(f, f, t)
    assert rows.non_finite.tolist() == [[0, 1, 2]]
    assert rows.l2[0, 0] == 0
    assert torch.equal(torch.nan_to_num(t), torch.nan_to_num(before))
    assert int(rows.target_cells.sum()) == 9  # 12 values, 3 of them not finite


def test_a_row_longer_than_a_chunk_is_whole():
    f = torch.randn(1, 2, 70_000, generator=torch.Generator().manual_seed(0))
    rows = measure_rows(f, f, f + 1.0)
    assert rows.l2.flatten().tolist() == pytest.approx([math.sqrt(70_000)] * 2, rel=1e-5)
