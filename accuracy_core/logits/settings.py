"""The documented `tol_map` and `aggregate_config` arguments, laid over the default tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from accuracy_core.errors import ConfigurationError
from accuracy_core.numerics import default_tolerances, parse_tolerance_map
from accuracy_core.schemas import Aggregate, Guards, Tolerances

#: documented name -> field of Aggregate
_AGGREGATE = {
    "agg_sigma_ratio_threshold": "sigma_ratio",
    "agg_bc_threshold": "bc",
    "agg_linf_ratio_threshold": "linf_ratio",
    "agg_l2_ratio_threshold": "l2_ratio",
    "linf_multiplier": "linf_ratio",
    "l2_multiplier": "l2_ratio",
    "bc_min_samples": "bc_min_samples",
}
_GUARD = {f"guard_{name}": name for name in Guards.model_fields}


def effective_tolerances(
    tolerances: Tolerances | None, tol_map: Mapping[Any, Any] | None, aggregate_config: Mapping[str, Any] | None
) -> Tolerances:
    """`tolerances` (None: the defaults) with the two documented overrides.

    `aggregate_config` takes `agg_sigma_ratio_threshold`, `agg_bc_threshold`, the diagnostic multipliers
    `agg_linf_ratio_threshold` and `agg_l2_ratio_threshold` (or `linf_multiplier`, `l2_multiplier`), `bc_min_samples`,
    and every guard limit as `guard_<name>` or in a dict under `guards`. Raises ConfigurationError for unknown names.
    """
    result = tolerances or default_tolerances()
    if tol_map is not None:
        slices = parse_tolerance_map(tol_map)
        result = result.model_copy(update={"top_k": {s.key: (s.atol, s.rtol) for s in slices}})
    if not aggregate_config:
        return result
    aggregate, guards = result.aggregate.model_dump(), result.guards.model_dump()
    given = {**aggregate_config}
    for name, value in (given.pop("guards", None) or {}).items():
        given[f"guard_{name}"] = value
    for name, value in given.items():
        if name in _AGGREGATE:
            aggregate[_AGGREGATE[name]] = value
        elif name in _GUARD:
            guards[_GUARD[name]] = value
        else:
            raise ConfigurationError(
                f"aggregate_config does not know {name!r}", fix=f"known names: {', '.join([*_AGGREGATE, *_GUARD])}"
            )
    try:
        update = {"aggregate": Aggregate.model_validate(aggregate), "guards": Guards.model_validate(guards)}
    except ValidationError as error:
        raise ConfigurationError(f"aggregate_config has a value that is no limit: {error}") from error
    return result.model_copy(update=update)
