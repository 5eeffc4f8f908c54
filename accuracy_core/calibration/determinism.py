"""The same reference twice: whatever differs then is the noise floor of everything else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field

from accuracy_core.calibration.material import Ids, Source, forward_rows
from accuracy_core.calibration.relative_error import rows_error
from accuracy_core.schemas.base import Part


class DeterminismFloor(Part):
    """Relative error of a reference against itself; 0.0, or it is the noise floor of everything else."""

    same_process: float = Field(description="the same model, run twice")
    rebuilt: float = Field(description="two independently built copies, at other addresses")

    @property
    def floor(self) -> float:
        return max(self.same_process, self.rebuilt)


def determinism_floor(source: Source, dtype: torch.dtype, ids: Sequence[Ids], rows: int) -> DeterminismFloor:
    model = source.build(dtype)
    first, again = forward_rows(model, ids, rows), forward_rows(model, ids, rows)
    blocker = torch.empty(1 << 20)  # so that the second copy does not get the first one's addresses
    other = forward_rows(source.build(dtype), ids, rows)
    del blocker
    return DeterminismFloor(same_process=rows_error(again, first), rebuilt=rows_error(other, first))
