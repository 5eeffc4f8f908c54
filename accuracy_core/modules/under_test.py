"""A module that somebody is writing, against the reference's: what a kernel team's test holds in its hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.modules.closeness import ThreeWayCloseness, assert_close_three_way
from accuracy_core.modules.hf_executor import HfModuleExecutor
from accuracy_core.modules.kinds import module_kind, wire
from accuracy_core.modules.validate import Plan, seeded_input


@dataclass(frozen=True)
class ModuleCase:
    """One seeded input of one module, with the reference's answers.

    `rows`: (tokens, features) in the target's dtype; for `rope` the query and key projections side by side.
    `token_ids` and `positions`: int64 (tokens,); `prefill`: how many of them come at once, the others one by one.
    `weights`: the module's own weights in the target's dtype, by name relative to it. `config`: the model's text
    configuration. `fp32`, `expected`: reference outputs, one tensor per thing that is read (two for `rope`).
    """

    kind: str
    layer: int
    rows: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    prefill: int
    weights: dict[str, torch.Tensor]
    config: Any
    fp32: list[torch.Tensor]
    expected: list[torch.Tensor]


#: the implementation under test: a case's input to its output rows, one tensor per thing that is read
Implementation = Callable[[ModuleCase], torch.Tensor | list[torch.Tensor]]


class ModuleUnderTest:
    """Cases and checks for modules of `checkpoint`. Weights of one layer are read; two references are kept."""

    def __init__(self, checkpoint: str, dtype: torch.dtype = torch.bfloat16, plan: Plan | None = None) -> None:
        self._checkpoint, self._dtype, self._plan = checkpoint, dtype, plan or Plan()
        self._fp32 = HfModuleExecutor(checkpoint, torch.float32, stepwise=False)
        self._expected = HfModuleExecutor(checkpoint, dtype, stepwise=False)

    def cases(self, kind: str, layer: int = 0) -> Iterator[ModuleCase]:
        """Seeded inputs of `kind`.

        Raises ConfigurationError for an unknown kind, NotMeasuredError for one that the model does not have.
        """
        wiring = wire(kind, layer, self._fp32.taps(layer))
        if wiring is None:
            raise NotMeasuredError(f"the model has no {module_kind(kind).what} in layer {layer}")
        sizes = self._fp32.feature_sizes(wiring)
        config = self._fp32.config
        weights = self._expected.weights(wiring)
        for seed in self._plan.numbers:
            given = seeded_input(wiring, sizes, config, self._dtype, self._plan, seed)
            fp32, expected = self._fp32.run(given), self._expected.run(given)
            taps = list(given.rows)
            rows = torch.cat([given.rows[tap] for tap in taps], -1) if taps else torch.empty(len(given.token_ids), 0)
            yield ModuleCase(
                kind=kind,
                layer=layer,
                rows=rows.to(self._dtype),
                token_ids=torch.tensor(given.token_ids),
                positions=torch.arange(len(given.token_ids)),
                prefill=given.prefill,
                weights=weights,
                config=config.get_text_config(),
                fp32=list(fp32.values()),
                expected=list(expected.values()),
            )

    def check(self, kind: str, implementation: Implementation, layer: int = 0) -> ThreeWayCloseness:
        """Run `implementation` on every case. Raises AssertionError, with the figures, unless it is as close to FP32 as
        its dtype lets it be (`assert_close_three_way`)."""
        sides: tuple[list[torch.Tensor], ...] = ([], [], [])
        for case in self.cases(kind, layer):
            got = implementation(case)
            actual = [got] if isinstance(got, torch.Tensor) else list(got)
            if len(actual) != len(case.fp32):
                raise ConfigurationError(
                    f"{kind}: the implementation returned {len(actual)} tensors, {len(case.fp32)} are compared",
                    fix="return one tensor per output: query and key for rope, else a single one",
                )
            for side, tensors in zip(sides, (case.fp32, case.expected, actual), strict=True):
                side += tensors
        return assert_close_three_way(*sides)
