"""The fixture that kernel teams use, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "modules"

WRONG = """
import torch
from test_kernels import my_mlp, my_rms_norm, my_rope


def test_forgets_a_twentieth(assay_module):
    assay_module.check("mlp", lambda case: my_mlp(case) * 1.05)


def test_norm_without_float32(assay_module):
    def norm(case):
        x = case.rows
        return x * torch.rsqrt(x.square().cumsum(-1)[..., -1:] / x.shape[-1] + case.config.rms_norm_eps) * (
            case.weights["weight"])
    assay_module.check("rms_norm", norm)


def test_positions_are_off_by_one_in_decode(assay_module):
    from dataclasses import replace

    def rope(case):
        late = case.positions >= case.prefill
        return my_rope(replace(case, positions=case.positions + late))
    assay_module.check("rope", rope)


def test_one_nan(assay_module):
    def mlp(case):
        out = my_mlp(case)
        out[-1, -1] = float("nan")
        return out
    assay_module.check("mlp", mlp)


def test_too_few_tensors(assay_module):
    assay_module.check("rope", lambda case: my_rope(case)[0])


def test_no_such_module(assay_module):
    assay_module.check("router", my_mlp)
"""


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assay-inputs", "3", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_example_passes():
    done = run_pytest(str(EXAMPLE), "--rootdir", str(EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_wrong_kernels_fail_with_figures(tmp_path):
    (tmp_path / "test_wrong.py").write_text(WRONG)
    (tmp_path / "test_kernels.py").write_text((EXAMPLE / "test_kernels.py").read_text())
    done = run_pytest(str(tmp_path / "test_wrong.py"), "--rootdir", str(tmp_path))
    assert "6 failed" in done.stdout, done.stdout
    for text in ("L2 ratio", "sigma ratio", "NaN or infinity", "1 tensors, 2 are compared", "no router logits"):
        assert text in done.stdout, text
