"""Defective fixtures are told apart from sound ones."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from accuracy_core.calibration.lint import lint_fixture, lint_tensor
from accuracy_core.errors import ConfigurationError

NORMAL = torch.randn(4096, generator=torch.Generator().manual_seed(0))


def outliers():
    tensor = NORMAL.clone()
    tensor[:4] = 1000.0
    return tensor


def collapsing():
    moment = NORMAL.square() + 0.1
    moment[:8] = 1e-12
    return moment


@pytest.mark.parametrize(
    ("name", "tensor", "checks"),
    [
        ("weight", NORMAL, set()),
        ("weight", outliers(), {"energy"}),
        ("weight", torch.cat([NORMAL, torch.tensor([1e-39])]), {"underflow"}),
        ("weight", torch.tensor([1.0, float("inf")]), {"finite"}),
        ("exp_avg_sq", NORMAL.square() + 0.1, set()),
        ("layer.v", collapsing(), {"second_moment"}),
        ("layer.weight_scale", torch.tensor(0.0314), {"scale"}),
        ("layer.weight_scale", torch.tensor(0.03125), set()),
        ("layer.weight_scale", NORMAL.abs() + 0.1, set()),  # one for each row: rounding averages out
        ("layer.global_scale", torch.tensor(-1.0), {"scale"}),
        ("packed", torch.randint(0, 255, (64,), dtype=torch.uint8), set()),
    ],
)
def test_one_tensor(name, tensor, checks):
    found = lint_tensor(name, tensor)
    assert {item.check for item in found} == checks
    assert all(name in item.evidence and item.fix for item in found)


def test_a_file(tmp_path):
    path = tmp_path / "fixture.safetensors"
    save_file({"a": NORMAL, "b": outliers()}, path)
    assert {item.evidence.split(":")[0] for item in lint_fixture(path)} == {"b"}


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"])
def test_what_is_no_fixture(tmp_path, content):
    path = tmp_path / "fixture.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="safetensors file"):
        lint_fixture(path)
