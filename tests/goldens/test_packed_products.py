"""Packed products are products; the model is as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accuracy_core.goldens import packed_products
from accuracy_core.goldens.packed_products import packed_weights


def test_packed_products_are_those_of_float64() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 10, bias=False), nn.Linear(10, 10).bfloat16())
    exact = torch.randn(4, 64, dtype=torch.float64)
    wanted = exact @ model[0].weight.detach().double().T + model[0].bias.detach().double()
    with packed_weights(model, 4) as count, torch.no_grad():
        assert count == 2
        for inputs in (exact.float(), exact.float().unsqueeze(1)):
            result = model[0](inputs).reshape(4, 48)
            assert (result - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        assert (model[0](exact[:3].float()) - wanted[:3]).abs().max() <= 1e-5 * wanted.abs().max()
    assert all("forward" not in module.__dict__ for module in model)


def test_nothing_is_packed_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    with packed_weights(model, 1) as count:
        assert count == 0
    monkeypatch.setattr(packed_products, "free_bytes", lambda: 100)
    with packed_weights(model, 4) as count:
        assert count == 0
    monkeypatch.undo()

    class NoOperators:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    monkeypatch.setattr(torch.ops, "mkldnn", NoOperators())
    with packed_weights(model, 4) as count:
        assert count == 0
        assert model(torch.zeros(4, 8)).shape == (4, 8)
