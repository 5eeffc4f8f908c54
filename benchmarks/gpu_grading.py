"""What gates 2 and 3 see on a CUDA card, for the 1B shape: `python benchmarks/gpu_grading.py [--output FILE]`.

Kernel launches per step and dominant share, eager and replayed from a captured graph; wall and busy time per step; the
weight-bandwidth floor measured on the card. About two minutes, most of it drawing the weights on the host. Without a
card it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from accuracy_core.grading import unfused
from accuracy_core.grading.baselines import measured_bandwidth
from accuracy_core.grading.counting import Event, StepCount, count_kernels
from accuracy_core.grading.shape import KvCache, StepConfig, bytes_per_step, make_cache, make_tokens, make_weights
from accuracy_core.grading.task import SHAPES, grade_task

REPEATS = 20


def counted(step: Callable[[], object]) -> StepCount:
    """Kernels of one call, as the profiler's device events say."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    events = [
        Event(event.name, int(1e3 * event.time_range.start), int(1e3 * event.time_range.elapsed_us()),
              on_device=event.device_type == on_device)
        for event in profile.events() or []
    ]  # fmt: skip
    return count_kernels(events)


def wall(step: Callable[[], object]) -> float:
    """Median seconds."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@torch.inference_mode()
def rows(name: str, config: StepConfig, bandwidth: float) -> list[str]:
    """Lines of the table of one task."""
    weights = {key: tensor.cuda() for key, tensor in make_weights(config, 7).items()}
    step, cache, ids = unfused.build(config, weights), make_cache(config, 0, 1), make_tokens(config, 1, 1)[0].cuda()
    cache = KvCache(cache.k.cuda(), cache.v.cuda(), config.context)
    for _ in range(3):
        step(ids, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(ids, cache)
    floor = bytes_per_step(config) / bandwidth
    found = []
    for how, run in (("eager", lambda: step(ids, cache)), ("graph", graph.replay)):
        count, seconds = counted(run), wall(run)
        busy = count.total / 1e9
        found.append(
            f"| {name} | {how} | {count.launches} | {count.dominant_share:.3f} | {1e3 * seconds:.3f} | "
            f"{1e3 * busy:.3f} | {1e3 * floor:.3f} | {seconds / floor:.1f} | {busy / floor:.1f} |"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("not measured: no CUDA card at hand")
        return 0
    bandwidth = measured_bandwidth("cuda")
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {bandwidth / 1e9:.0f} GB/s read"
    table = [card, "", "| task | how | launches | dominant share | wall ms | busy ms | floor ms | wall/floor | busy/floor |",  # noqa: E501
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in SHAPES:
        table += rows(name, grade_task(name, "1b").config, bandwidth)
        torch.cuda.empty_cache()
    text = "\n".join(table)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
