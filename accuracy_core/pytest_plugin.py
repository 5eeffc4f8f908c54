"""Pytest plugin: the fixture `assay_module` for tests of single modules.

    def test_mlp(assay_module):
        assay_module.check("mlp", my_mlp)

`pytest --assay-model FOLDER` chooses the checkpoint; the default is the bundled tiny model. Loaded through its entry
point in every run of pytest, so it imports nothing before the fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from accuracy_core.modules.under_test import ModuleUnderTest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("assay", "tests of single modules against their reference")
    group.addoption("--assay-model", default="embedded", help="checkpoint of the reference (default: %(default)s)")
    group.addoption("--assay-dtype", default="bfloat16", choices=("bfloat16", "float16"), help="dtype of the modules")
    group.addoption("--assay-inputs", type=int, default=10, help="seeded inputs per module (default: %(default)s)")


@pytest.fixture(scope="session")
def assay_module(request: pytest.FixtureRequest) -> ModuleUnderTest:
    """Modules of the checkpoint, to be compared with your own: see ModuleUnderTest."""
    import torch

    from accuracy_core.models import resolve_model
    from accuracy_core.modules.under_test import ModuleUnderTest
    from accuracy_core.modules.validate import Plan

    config = request.config
    checkpoint = resolve_model(config.getoption("--assay-model"), need_tokenizer=False)
    dtype = getattr(torch, config.getoption("--assay-dtype"))
    return ModuleUnderTest(str(checkpoint), dtype, Plan(seeds=config.getoption("--assay-inputs")))
