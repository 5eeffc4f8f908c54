"""Is what misses the documented rule nothing but digits that a kernel cuts off instead of rounding?

vLLM's CPU kernels do that behind rotary embedding, attention and experts (docs/module-validation.md): a property of
the target worth a name, and no wrong module. It is proven, not assumed: with one and the same share of a unit in the
last place given back to every value, the documented rule must pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accuracy_core.modules.closeness import ThreeWayCloseness, closeness_three_way, mantissa_bits
from accuracy_core.modules.limits import ModuleLimits


def digits_cut(
    baseline: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    actual: Sequence[torch.Tensor],
    judged: ThreeWayCloseness,
    bounds: ModuleLimits,
) -> str:
    """What was found, in words; '' when `judged` passed or when cut digits do not explain it.

    Lists of tensors as in `closeness_three_way`, which gave `judged`. Its bounds on the L-inf and L2 ratios must hold
    as they are; only its route over BC and sigma ratio is asked again. Given back is the share of `sign(f) ulp(f)`
    that leaves the least square error, one number for all tensors, and limited.
    """
    within = judged.worst_linf_ratio < bounds.linf_ratio and judged.worst_l2_ratio < bounds.l2_ratio  # NaN is not
    if judged.passed or not within or not judged.lean < -bounds.lean:
        return ""
    bits = mantissa_bits(expected)
    steps = [_signed_steps(f.double(), bits) for f in baseline]
    pull = sum(
        float((step * (f.double() - t.double())).sum()) for f, t, step in zip(baseline, actual, steps, strict=True)
    )
    size = sum(float(step.square().sum()) for step in steps)
    share = pull / size if size else 0.0
    if not 0 < share <= bounds.give_back_ulps:
        return ""
    given_back = [t.double() + share * step for t, step in zip(actual, steps, strict=True)]
    again = closeness_three_way(list(baseline), list(expected), given_back, bounds=bounds)
    if not again.passed:
        return ""
    return (
        f"digits are cut off instead of rounded: with {share:.2f} units in the last place given back to every value "
        f"the documented rule passes (sigma ratio {again.sigma_ratio:.3g}, BC {again.bc:.4f})"
    )


def _signed_steps(f: torch.Tensor, bits: int) -> torch.Tensor:
    """sign(f) times the spacing of the target's dtype at |f|."""
    return f.sign() * torch.exp2(f.abs().log2().floor() - bits)
