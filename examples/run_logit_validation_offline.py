"""Logit validation of an offline engine: `python examples/run_logit_validation_offline.py [--model FOLDER]`.

The engine runs in a process of its own, in the engine's environment. It is forced along the FP32 reference's tokens,
and its raw logits are judged three-way: FP32, the low-precision reference, the engine. Exit code: 0 passed, 2 failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from accuracy_core import EngineSpec, LogitValPlugin, run_prompt_analysis
from accuracy_core.outcome import Verdict

PROMPTS = ["Q: 47+38\nA:", "Q: 91-17\nA:", "The capital of France is"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="Hugging Face folder; `embedded` is the bundled tiny model")
    parser.add_argument("--engine", default="vllm", help="vllm, vllm-server or transformers")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--output-length", type=int, default=16, help="tokens per prompt")
    parser.add_argument("--output", help="directory of the results; default: a temporary one")
    arguments = parser.parse_args()
    spec = EngineSpec(model=arguments.model, engine=arguments.engine, dtype=arguments.dtype)
    with tempfile.TemporaryDirectory() as scratch:
        result = run_prompt_analysis(
            spec, PROMPTS, [LogitValPlugin()], arguments.output or scratch, arguments.output_length, triage=False
        )
        result.raise_if_broken()
    status = result.status.plugins["logit_validation"]
    for route in status.routes:
        print(f"{route.route:13} {'met' if route.passed else 'not met':8} {route.value:.4g} ({route.threshold:.4g})")
    print(f"verdict: {status.verdict.value if status.verdict else 'not measured'}")
    return 0 if status.verdict is Verdict.PASS else 2


if __name__ == "__main__":
    sys.exit(main())
