"""Speed and memory of a logit comparison: `python benchmarks/numerics.py [--quick]`.

8 prompts x 64 tokens x vocabulary 128 256, three sides, float32. Prints the total time as a multiple of one pass that
only reads the three tensors, against a torch loop over rows and a numpy loop over rows (lstsq, histograms) that compute
the documented metrics, and the peak of extra memory at 64 and at 128 tokens per prompt.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

TOP_K = {5: 0.011, 50: 0.02, 1000: 0.03}
BINS = 100


def make(prompts: int, tokens: int, vocab: int) -> tuple[list[torch.Tensor], ...]:
    """Baseline, expected, target: lists of (tokens, 1, vocab)."""
    g = torch.Generator().manual_seed(0)
    f = [torch.randn(tokens, 1, vocab, generator=g) * 2 - 4 for _ in range(prompts)]
    noisy = [[x + torch.randn(x.shape, generator=g) * 0.02 for x in f] for _ in range(2)]
    return f, noisy[0], noisy[1]


def best_of(n: int, call: Callable[[], object]) -> float:
    """Shortest wall time of `n` calls, in seconds."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def read_pass(sides: tuple[list[torch.Tensor], ...]) -> float:
    """Read every element once and do next to nothing with it."""
    return float(sum(x.sum() for side in sides for x in side))


def torch_loop(sides: tuple[list[torch.Tensor], ...], rows: int | None = None) -> None:
    """One row at a time with torch: shift, top-k errors, divergence, ratios, BC, KL, agreement."""
    done = 0
    for f_p, e_p, t_p in zip(*sides, strict=True):
        for f, e, t in zip(f_p[:, 0], e_p[:, 0], t_p[:, 0], strict=True):
            torch_row(f, e, t)
            done += 1
            if rows and done >= rows:
                return


def torch_row(f: torch.Tensor, e: torch.Tensor, t: torch.Tensor) -> dict[str, float]:
    """The documented metrics of one row."""

    def shifted(ref: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        centred = ref - ref.mean()
        slope = torch.dot(centred, x) / torch.dot(centred, centred)
        return x - (x.mean() - slope * ref.mean())

    t_e, t_f, e_f = shifted(e, t), shifted(f, t), shifted(f, e)
    error = (t_e - e).abs()
    ids = e.topk(1000).indices
    out = {f"top{k}": float((error[ids[:k]].max() - 1e-5) / e[ids[:k]].abs().max()) for k in TOP_K}
    out["all"] = float((error.max() - 1e-5) / e.abs().max())
    base, target = (e_f - f).abs(), (t_f - f).abs()
    out["linf_ratio"] = float(target.max() / base.max())
    out["l2_ratio"] = float(target.norm() / base.norm())
    edges = torch.quantile(base[::4], torch.linspace(0, 1, 65)[1:-1])
    p = torch.bincount(torch.bucketize(base[::4].contiguous(), edges), minlength=64).float()
    q = torch.bincount(torch.bucketize(target[::4].contiguous(), edges), minlength=64).float()
    out["bc"] = float((p * q).sqrt().sum() / (p.sum() * q.sum()).sqrt())
    log_p, log_q = torch.log_softmax(f, -1), torch.log_softmax(t, -1)
    out["kl"] = float((log_p.exp() * (log_p - log_q)).sum())
    out["bias"] = float((torch.sign(f) * (t - f)).mean())
    out["top5"] = len(set(f.topk(5).indices.tolist()) & set(t.topk(5).indices.tolist())) / 5
    out["finite"] = float(torch.isfinite(f).all() and torch.isfinite(e).all() and torch.isfinite(t).all())
    return out


def numpy_loop(sides: tuple[list[torch.Tensor], ...], rows: int) -> None:
    """One row at a time with numpy, as such code is usually written: lstsq for the shift, a sort, histograms."""
    done = 0
    for f_p, e_p, t_p in zip(*sides, strict=True):
        for f, e, t in zip(f_p[:, 0].numpy(), e_p[:, 0].numpy(), t_p[:, 0].numpy(), strict=True):
            numpy_row(f, e, t)
            done += 1
            if done >= rows:
                return


def numpy_row(f: np.ndarray, e: np.ndarray, t: np.ndarray) -> dict[str, float]:
    """The documented metrics of one row."""

    def shifted(ref: np.ndarray, x: np.ndarray) -> np.ndarray:
        design = np.stack([ref, np.ones_like(ref)], 1)
        return x - np.linalg.lstsq(design, x, rcond=None)[0][1]

    t_e, t_f, e_f = shifted(e, t), shifted(f, t), shifted(f, e)
    order = np.argsort(-e)
    out = {}
    for k in (*TOP_K, len(e)):
        ids = order[:k]
        out[f"top{k}"] = (np.abs(t_e[ids] - e[ids]).max() - 1e-5) / np.abs(e[ids]).max()
    base, target = np.abs(e_f - f), np.abs(t_f - f)
    out["linf_ratio"], out["l2_ratio"] = target.max() / base.max(), np.linalg.norm(target) / np.linalg.norm(base)
    span = (0.0, max(base.max(), target.max()))
    p, q = np.histogram(base, BINS, span)[0], np.histogram(target, BINS, span)[0]
    out["bc"] = np.sqrt(p / p.sum() * (q / q.sum())).sum()
    pf, pt = np.exp(f - f.max()), np.exp(t - t.max())
    pf, pt = pf / pf.sum(), pt / pt.sum()
    out["kl"] = (pf * np.log(pf / pt)).sum()
    return out


def extra_memory(tokens: int, vocab: int, prompts: int) -> float:
    """Peak of resident memory above the inputs, in MiB, in a process of its own."""
    command = [sys.executable, __file__, "--memory", str(prompts), str(tokens), str(vocab)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_extra_memory(prompts: int, tokens: int, vocab: int) -> None:
    """Compare once and print the peak above what the inputs take."""
    from accuracy_core.logits import compare_prompts

    compare_prompts(*make(1, 2, 1000))  # what is loaded on first use is no buffer of the comparison
    sides = make(prompts, tokens, vocab)
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # else memory freed by `make` would be used unseen
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    compare_prompts(*sides)
    print((status("VmHWM") - before) / 1024)


def status(key: str) -> int:
    """A field of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, no memory measurement")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory", type=int, nargs=3, metavar=("PROMPTS", "TOKENS", "VOCAB"), help="print extra MiB")
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many counts")
    args = parser.parse_args()
    if args.memory:
        print_extra_memory(*args.memory)
        return
    torch.set_num_threads(args.threads)
    from accuracy_core.logits import compare_prompts

    prompts, tokens, vocab = (2, 24, 128_256) if args.quick else (8, 64, 128_256)
    sides, rows = make(prompts, tokens, vocab), prompts * tokens
    print(f"{platform.machine()}, torch {torch.__version__}, {args.threads} threads; {rows} rows x {vocab}")
    few = min(rows, 96)
    calls: list[Callable[[], object]] = [
        lambda: read_pass(sides),
        lambda: compare_prompts(*sides),
        lambda: torch_loop(sides, few),
        lambda: numpy_loop(sides, few),
    ]
    times = [[best_of(1, call) for call in calls] for _ in range(args.repeat)]  # in turns: other load hits all alike
    read, ours, by_torch, by_numpy = (min(column) for column in zip(*times, strict=True))
    by_torch, by_numpy = by_torch * rows / few, by_numpy * rows / few
    print(f"read pass            {read:8.3f} s")
    print(f"compare_prompts      {ours:8.3f} s   {ours / read:6.1f} x the read pass")
    print(f"torch loop over rows {by_torch:8.3f} s   {by_torch / ours:6.1f} x ours (from {few} rows)")
    print(f"numpy loop over rows {by_numpy:8.3f} s   {by_numpy / ours:6.1f} x ours (from {few} rows)")
    if not args.quick:
        del sides
        for n in (tokens, 2 * tokens):
            print(f"peak extra memory, {n:4d} tokens per prompt: {extra_memory(n, vocab, prompts):6.0f} MiB")


if __name__ == "__main__":
    main()
