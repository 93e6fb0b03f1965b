#!/usr/bin/env python3
"""Nanoseconds per operator from Python: f32[4], `x = x + y` 10,000 times, warm, without grad.

    python benchmarks/dispatch.py
    python benchmarks/dispatch.py --device cpu

Two figures per contender: enqueue alone, and with a final synchronisation. Native and this backend take turns
in one process, so that both see the same machine; the median of the rounds is printed with the fastest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

OPERATORS = 10_000


def chain(device: str, synchronize: Callable[[], None]) -> tuple[float, float]:
    """(enqueue, enqueue + synchronise) in ns per operator for one chain of additions on `device`."""
    x, y = torch.zeros(4, device=device), torch.ones(4, device=device)
    synchronize()
    start = time.perf_counter_ns()
    for _ in range(OPERATORS):
        x = x + y
    enqueued = time.perf_counter_ns()
    synchronize()
    finished = time.perf_counter_ns()
    if x.tolist() != [OPERATORS] * 4:
        raise AssertionError(f"{device}: {x.tolist()} instead of {OPERATORS}")
    return (enqueued - start) / OPERATORS, (finished - start) / OPERATORS


def contenders(device: str) -> dict[str, Callable[[], tuple[float, float]]]:
    found = {"native CPU": lambda: chain("cpu", lambda: None)}
    if device != "cpu":

        def in_mode(mode: str) -> tuple[float, float]:
            torch.tpu.set_eager_mode(mode)
            return chain(device, torch.tpu.synchronize)

        found |= {mode: lambda mode=mode: in_mode(mode) for mode in ("strict", "fused")}
    return found


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    runs = contenders(args.device)
    for run in runs.values():
        run()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            times[name].append(run())
    print(f"{'ns per operator':18s}{'enqueue':>10s}{'(fastest)':>11s}{'with sync':>11s}{'(fastest)':>11s}")
    for name, pairs in times.items():
        enqueue, total = zip(*pairs, strict=True)
        print(
            f"{name:18s}{statistics.median(enqueue):10.0f}{min(enqueue):11.0f}"
            f"{statistics.median(total):11.0f}{min(total):11.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
