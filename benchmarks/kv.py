"""Speed and memory of the KV comparison: `python benchmarks/kv.py [--quick]`.

32 layers x 8 KV heads x head_dim 128 (an 8B model), K and V, FP32 reference, BF16 reference, BF16 target. Cosine, L-inf
and L2 of every row (token, layer, head) on both sides: vectorised, against a triple Python loop with torch and one with
numpy that give the same numbers, which is checked. Then whole comparisons of prompts that are read from files, at two
numbers of prompts: time per prompt and peak memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

LAYERS, HEADS, WIDTH, PROMPT = 32, 8, 128, 128
#: fp32, expected, target of one layer's K or V
Sides = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
#: rows (layers, heads, tokens) of each number
Numbers = dict[str, torch.Tensor]


def make(layers: int, tokens: int, seed: int = 0) -> list[Sides]:
    """K and V of every layer, (heads, tokens, head_dim) each."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(2 * layers):
        f = torch.randn(HEADS, tokens, WIDTH, generator=g)
        b, t = ((f * (1 + 2e-3 * torch.randn(f.shape, generator=g))).to(torch.bfloat16) for _ in range(2))
        made.append((f, b, t))
    return made


def vectorised(caches: list[Sides]) -> Numbers:
    from accuracy_core.capture.kv.rows import measure_rows

    rows = [measure_rows(*sides, histograms=False) for sides in caches]
    return {
        "cosine": torch.stack([r.cosine() for r in rows]),
        "l2": torch.stack([r.l2 / r.ref_l2 for r in rows]),
        "linf": torch.stack([r.linf / r.ref_linf for r in rows]),
        "base_l2": torch.stack([r.base_l2 / r.ref_l2 for r in rows]),
        "base_linf": torch.stack([r.base_linf / r.ref_linf for r in rows]),
    }


def loop(
    caches: list[Sides], tokens: int, row: Callable[..., dict[str, float]], convert: Callable[..., object]
) -> Numbers:
    """Token by token, layer by layer, head by head."""
    numbers: Numbers = {}
    for token in range(tokens):
        for layer, sides in enumerate(caches):
            for head in range(HEADS):
                for name, value in row(*(convert(side[head, token]) for side in sides)).items():
                    if name not in numbers:
                        numbers[name] = torch.zeros(len(caches), HEADS, tokens, dtype=torch.float64)
                    numbers[name][layer, head, token] = value
    return numbers


def torch_row(f: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> dict[str, float]:
    norm, largest = torch.linalg.vector_norm(f), f.abs().max()
    return {
        "cosine": float(torch.nn.functional.cosine_similarity(t, f, dim=0)),
        "l2": float(torch.linalg.vector_norm(t - f) / norm),
        "linf": float((t - f).abs().max() / largest),
        "base_l2": float(torch.linalg.vector_norm(b - f) / norm),
        "base_linf": float((b - f).abs().max() / largest),
    }


def numpy_row(f: np.ndarray, b: np.ndarray, t: np.ndarray) -> dict[str, float]:
    norm, largest = np.linalg.norm(f), np.abs(f).max()
    return {
        "cosine": float(t @ f / (np.linalg.norm(t) * norm)),
        "l2": float(np.linalg.norm(t - f) / norm),
        "linf": float(np.abs(t - f).max() / largest),
        "base_l2": float(np.linalg.norm(b - f) / norm),
        "base_linf": float(np.abs(b - f).max() / largest),
    }


def agree(ours: Numbers, theirs: Numbers, tokens: int) -> float:
    """Largest difference. Raises SystemExit when the numbers are not the same."""
    worst = max(float((ours[name][..., :tokens] - value).abs().max()) for name, value in theirs.items())
    if not worst < 1e-6 or set(ours) != set(theirs):
        raise SystemExit(f"the loop gives other numbers: they differ by {worst}")
    return worst


def cpu_time(call: Callable[[], object], repeats: int = 1) -> float:
    """Shortest CPU time, seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def speed(tokens: int, looped: int) -> None:
    caches = make(LAYERS, tokens)
    ours = vectorised(caches)
    seconds = cpu_time(lambda: vectorised(caches), repeats=5)
    print(f"vectorised, {tokens} tokens x {LAYERS} layers x {HEADS} heads, K and V: {seconds:.3f} s")
    kinds: dict[str, tuple[Callable[..., dict[str, float]], Callable[..., object]]] = {
        "torch": (torch_row, lambda x: x.float()),
        "numpy": (numpy_row, lambda x: x.float().numpy()),
    }
    for name, (row, convert) in kinds.items():
        start = time.process_time()
        theirs = loop(caches, looped, row, convert)
        spent = (time.process_time() - start) * tokens / looped
        difference = agree(ours, theirs, looped)
        print(
            f"triple loop with {name} (from {looped} tokens): {spent:.1f} s, {spent / seconds:.0f} x ours; "
            f"largest difference {difference:.1e}"
        )


def memory(prompts: int, tokens: int) -> dict[str, float]:
    """Whole comparisons of `prompts` prompts, one file each, in this process."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    from accuracy_core.capture.kv import BaseEnvelope, compare_kv_caches
    from accuracy_core.capture.kv.files import TargetFiles, layers_of

    spent, envelope = 0.0, BaseEnvelope()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for prompt in range(prompts):
            target, reference = folder / "target", folder / "reference"
            sides = make(LAYERS, tokens, seed=prompt % 2)
            names = [f"{layer}.{which}" for layer in range(LAYERS) for which in ("key", "value")]
            save_file({f"kv.{n}": s[2] for n, s in zip(names, sides, strict=True)}, target)
            both = {f"fp32.{n}": s[0] for n, s in zip(names, sides, strict=True)}
            save_file(both | {f"dtype.{n}": s[1] for n, s in zip(names, sides, strict=True)}, reference)
            del sides, both
            with safe_open(str(reference), "pt") as file:

                def read(layer: int, which: str, file: Any = file) -> tuple[torch.Tensor, torch.Tensor]:
                    return file.get_tensor(f"fp32.{layer}.{which}"), file.get_tensor(f"dtype.{layer}.{which}")

                start = time.process_time()
                compared = layers_of(TargetFiles([target]), range(LAYERS), read)
                compare_kv_caches(compared, prompt_length=tokens - 16, envelope=envelope)
                spent += time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": spent / prompts, "peak_mib": peak / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", type=int, help="internal: compare this many prompts and print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        print(json.dumps(memory(arguments.memory, PROMPT)))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, torch {torch.__version__}, ")
    print(f"{arguments.threads} thread(s); CPU times")
    speed(PROMPT, looped=2 if arguments.quick else 16)
    for prompts in (2, 4) if arguments.quick else (4, 16):
        out = subprocess.run(
            [sys.executable, __file__, "--memory", str(prompts), "--threads", str(arguments.threads)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(out.stdout)
        print(
            f"{prompts} prompts x {PROMPT} tokens, everything (rows, BC, guards, patterns): {found['seconds']:.2f} s a "
            f"prompt, peak memory of the process {found['peak_mib']:.0f} MiB"
        )


if __name__ == "__main__":
    main()
