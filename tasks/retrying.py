"""When a task may be tried again: infrastructure failed, and only then."""

from __future__ import annotations

from typing import Any

from accuracy_core.errors import InfrastructureError


def infrastructure_only(task: object, run: object, state: Any) -> bool:
    """Retry condition for Prefect. A verdict or a wrong set-up does not get better by repetition."""
    try:
        state.result()
    except InfrastructureError:
        return True
    except Exception:
        return False
    return False
