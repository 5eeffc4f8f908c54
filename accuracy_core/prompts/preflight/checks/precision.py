"""Does the engine compute in the dtype that the checkpoint was made for?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from accuracy_core.prompts.preflight.facts import PreflightFacts
from accuracy_core.prompts.preflight.registry import doubtful, preflight_check, unmeasured, wrong
from accuracy_core.schemas import Finding

_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@preflight_check("dtype", "checkpoint", "does the engine's dtype hold the checkpoint's numbers?")
def check_dtype(facts: PreflightFacts) -> Iterator[Finding]:
    """bf16 weights in fp16 overflow beyond 65504 and lose small values: wrong. Fewer digits than stored: doubtful."""
    stored = checkpoint_dtype(facts)
    wanted = facts.spec.dtype
    if stored is None:
        yield unmeasured("dtype", "the checkpoint does not say its dtype")
        return
    if wanted in ("auto", stored, "float32"):
        return
    if (stored, wanted) == ("bfloat16", "float16"):
        yield wrong(
            "dtype",
            "the engine runs in float16, the checkpoint is bfloat16: activations beyond 65504 overflow and small "
            "weights vanish",
            "use --dtype bfloat16 (or float32 where the device has no bfloat16)",
        )
    else:
        yield doubtful(
            "dtype",
            f"the engine runs in {wanted}, the checkpoint is {stored}",
            f"meant so? Else use --dtype {stored}",
        )


def checkpoint_dtype(facts: PreflightFacts) -> str | None:
    """From the weights themselves (what most numbers are stored in), else from config.json."""
    counts: Counter[str] = Counter()
    for info in facts.tensors.values():
        if info.dtype in _NAMES:
            counts[_NAMES[info.dtype]] += math.prod(info.shape)
    if counts:
        return counts.most_common(1)[0][0]
    named = facts.config.get("dtype") or facts.config.get("torch_dtype")
    return str(named) if named else None
