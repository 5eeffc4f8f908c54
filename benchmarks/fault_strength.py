"""How weak may a fault be and still be found, and how strong must it be before a greedy token changes?

    python benchmarks/fault_strength.py [--engine hf|vllm] [--arch embedded] [--output FILE.json]

For each fault a ladder of strengths, weakest first. Detection: a prompt analysis (logits, KV
cache and module tensors) whose verdict is not pass. Greedy change: the target itself, generating freely, gives another
token than without the fault in one of the prompts. Both are taken as monotone along the ladder and found by bisection.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accuracy_core.engines.registry import open_engine
from accuracy_core.schemas import FaultSpec, ReplayRequest
from accuracy_core.selftest import Case
from accuracy_core.selftest.prompts import selftest_prompts
from accuracy_core.selftest.run import PLUGINS, run_case, spec_of

#: distance from the strength at which the fault is none
STEPS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: fault -> strength at which it is none, and whether the ladder adds to it or is the strength itself
FAULTS = {"mlp-scale": 1.0, "attention-scale": 1.0, "rope-theta": 1.0, "kv-scale": 1.0}
GREEDY_PROMPTS, GREEDY_TOKENS = 10, 48


def first_true(ladder: Sequence[float], holds: Callable[[float], bool]) -> float | None:
    """The smallest step for which `holds`, None when it does for none; `holds` must be monotone."""
    low, high = 0, len(ladder)
    while low < high:
        middle = (low + high) // 2
        if holds(ladder[middle]):
            high = middle
        else:
            low = middle + 1
    return ladder[low] if low < len(ladder) else None


def generated(engine: Any) -> list[list[int]]:
    """Tokens that the target generates freely after `GREEDY_PROMPTS` prompts."""
    prompts = [prompt for seed in range(GREEDY_PROMPTS) for prompt in selftest_prompts(seed)][:GREEDY_PROMPTS]
    requests = [
        ReplayRequest(request_id=f"free-{index}", prompt_token_ids=prompt, max_new_tokens=GREEDY_TOKENS)
        for index, prompt in enumerate(prompts)
    ]
    return [result.token_ids for result in engine.replay(requests)]


def sweep(engine: Any, spec: Any, architecture: str, folder: Path) -> list[dict[str, Any]]:
    engine.set_fault(None)
    clean = generated(engine)
    rows = []
    for name, neutral in FAULTS.items():
        placed: dict[float, Any] = {}

        def changes(step: float, name: str = name, neutral: float = neutral) -> bool:
            engine.set_fault(FaultSpec(name=name, strength=neutral + step))
            return generated(engine) != clean

        def detected(
            step: float, name: str = name, neutral: float = neutral, placed: dict[float, Any] = placed
        ) -> bool:
            case = Case(architecture, name, strength=neutral + step)
            result, _ = run_case(case, engine, spec, folder, PLUGINS)
            placed[step] = result
            return result.detected

        found = first_true(STEPS, detected)
        token = first_true(STEPS, changes)
        by = placed[found].by if found is not None else []
        module = placed[found].module if found is not None else None
        rows.append({"fault": name, "detected_from": found, "by": by, "module": module, "token_from": token})
        print(f"| {name} | {_step(found)} | {', '.join(by)} | {module} | {_step(token)} |", flush=True)
    engine.set_fault(None)
    return rows


def _step(value: float | None) -> str:
    return "none up to 1" if value is None else f"+{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("hf", "vllm"), default="hf")
    parser.add_argument("--arch", default="embedded")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    spec = spec_of("transformers" if arguments.engine == "hf" else "vllm", arguments.arch)
    print("| fault | detected from | by | first module | greedy token changes from |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="assay-strength-") as folder, open_engine(spec) as engine:
        rows = sweep(engine, spec, arguments.arch, Path(folder))
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
