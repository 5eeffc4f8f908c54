"""Modules of a running engine: rows are put in front of a module by tensor replacement, and taps read what it makes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.capture.names import TapPlan, plan_taps
from accuracy_core.capture.taps import tap_tensor_name
from accuracy_core.engines.protocol import TargetEngine
from accuracy_core.errors import InfrastructureError, NotMeasuredError
from accuracy_core.modules.executor import ModuleInput
from accuracy_core.schemas import CaptureSpec, ReplayRequest

if TYPE_CHECKING:
    import torch


class EngineModuleExecutor:
    """`engine`'s own layers, in its own kernels: prefill in one step, then decode steps through its KV cache.

    `config`: the model's configuration, as in config.json. `scratch` takes the seeded rows. The engine is left open.
    """

    def __init__(self, engine: TargetEngine, config: Mapping[str, Any], scratch: Path) -> None:
        self.name = engine.name
        self._engine, self._config, self._scratch = engine, config, scratch
        self._numbers = itertools.count()
        capabilities = engine.capabilities
        if not (capabilities.hooks and capabilities.replacement):
            raise NotMeasuredError(
                f"the engine {engine.name!r} cannot be hooked or cannot replace tensors: its modules cannot be fed",
                fix="use eager execution (enforce_eager), or compare whole runs with tensor_compare",
            )

    def run(self, given: ModuleInput) -> dict[str, torch.Tensor]:
        """As the protocol. Raises NotMeasuredError for taps that the engine lacks, InfrastructureError when a replay
        fails."""
        from safetensors.torch import load_file

        name = f"module-{given.wiring.kind}-{next(self._numbers)}"
        plan = self._plan([*given.wiring.read, *given.rows])
        reading = self._plan(list(given.wiring.read))
        file = self._scratch / f"{name}-rows.safetensors"
        self._scratch.mkdir(parents=True, exist_ok=True)
        unfed = [tap for tap in given.rows if not plan.replacement(tap)]
        if unfed:
            raise NotMeasuredError(f"rows cannot be put at {', '.join(unfed)} in this engine")
        try:
            request = ReplayRequest(
                request_id=name,
                prompt_token_ids=given.token_ids[: given.prefill],
                # the last forced token is never run: one more, so that every row is
                forced_token_ids=[*given.token_ids[given.prefill :], given.token_ids[0]],
                capture=CaptureSpec(modules=reading.raw),
                replacements=plan.write_replacements(given.rows, file) if given.rows else [],
            )
            (answer,) = self._engine.replay([request])
        finally:
            file.unlink(missing_ok=True)
        if answer.error or answer.tensors is None:
            raise InfrastructureError(f"{name}: {answer.error or 'the engine recorded nothing'}")
        stored = load_file(answer.tensors)
        Path(answer.tensors).unlink(missing_ok=True)
        raw = {tap: stored[tap_tensor_name(tap)] for tap in reading.raw if tap_tensor_name(tap) in stored}
        rows = reading.assemble(raw)
        missing = [tap for tap in given.wiring.read if tap not in rows]
        if missing:
            why = "; ".join(answer.missing.values())
            raise NotMeasuredError(f"the engine did not give {', '.join(missing)}{': ' + why if why else ''}")
        return rows

    def _plan(self, taps: list[str]) -> TapPlan:
        plan = plan_taps(
            self._engine.module_names(),
            self._config,
            taps,
            tensor_parallel_size=self._engine.spec.tensor_parallel_size,
            canonical=self._engine.name == "transformers",
        )
        if plan.missing:
            raise NotMeasuredError("; ".join(f"{tap}: {why}" for tap, why in plan.missing.items()))
        return plan

    def __enter__(self) -> EngineModuleExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        pass
