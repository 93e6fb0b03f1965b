#!/usr/bin/env python3
"""Benchmarks of whole steps: this backend in strict and fused mode beside native CPU eager.

    python benchmarks/run.py                                   # everything; a table on stdout
    python benchmarks/run.py --only gpt_train --json out.json
    python benchmarks/run.py --contenders native               # without the backend
    python benchmarks/run.py --only gpt_train --contenders native step jax --jax-python ~/jax/bin/python

`step` is a training step under torch_tpu.compile.step. `jax` is the same step in JAX (jax_steps.py), in the environment
of the interpreter that `--jax-python` names; gpt_train is the only workload that it has.

For every workload each contender runs in a process of its own, ours with an empty compile cache. The
processes then take turns (A B C A B C ...), one group of steps each, so that a noisy machine disturbs all
alike; a group ends with a synchronisation. Reported:

* first: the first step, compilation included, with an empty cache;
* second process: the first step of a new process that finds the cache of the first one;
* warm: median over the groups of the time per step, and the spread (max - min) / median;
* peak RSS of the process.

Times of `chained_add` are per operator, the others per step. Times are wall clock.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

CONTENDERS = ("native", "strict", "fused", "step", "jax")
USUAL = CONTENDERS[:3]
WORKLOADS = ("chained_add", "mlp_train", "cnn_train", "gpt_train", "bert_inference", "lstm_train", "greedy_decode")


# ------------------------------------------------------------------------------------------------ the child


def serve(contender: str, workload: str) -> None:
    """Runs one workload for one contender; the parent asks with lines of JSON on stdin."""
    start = time.perf_counter()
    import torch

    device = "cpu"
    if contender != "native":
        import torch_tpu

        device = "tpu"
        torch.tpu.set_eager_mode("strict" if contender == "step" else contender)
    synchronize = (lambda: None) if device == "cpu" else torch.tpu.synchronize
    imported = time.perf_counter() - start
    # Imported late: it imports torch, whose time belongs to `imported`.
    from workloads import WORKLOADS as builders

    step = builders[workload](device)
    if contender == "step":
        step.run = torch_tpu.compile.step(step.run)
    synchronize()

    def group(count: int, sync: bool = True) -> float:
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step.run()
        if sync:
            synchronize()
        elapsed = time.perf_counter() - begin
        synchronize()
        return elapsed / count / step.per

    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {}
        match request["do"]:
            case "first":
                # A step of many operators counts as one here: the reader waits for all of it.
                reply = {"import": imported, "seconds": group(1) * step.per}
            case "group":
                reply = {"seconds": group(request["count"], request["sync"])}
            case "report":
                reply = {
                    "check": step.check(),
                    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                    "threads": torch.get_num_threads(),
                }
                if device == "tpu":
                    reply |= {"statistics": torch_tpu.compile_stats(), "host_fallbacks": torch_tpu.host_fallbacks()}
        print(json.dumps(reply), flush=True)


class Child:
    """A contender's process. `ask` waits for its answer; a child that dies is an error with its stderr."""

    def __init__(self, contender: str, workload: str, cache: str, jax_python: str) -> None:
        environment = dict(os.environ, TORCH_TPU_CACHE_DIR=cache, TORCH_TPU_HOST_FALLBACK="silent")
        if contender == "native":
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        self.name = f"{workload} ({contender})"
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the child)
        command = [sys.executable, __file__, "--serve", contender, "--only", workload]
        if contender == "jax":
            environment.pop("PYTHONPATH", None)
            command = [jax_python, str(pathlib.Path(__file__).with_name("jax_steps.py")), workload]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(f"{self.name} ended with {code}: {self.errors.read()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()


# ----------------------------------------------------------------------------------------------- the parent


@dataclasses.dataclass
class Result:
    """One contender on one workload; seconds."""

    contender: str
    first: float = 0.0
    second_process: float = 0.0
    groups: list[float] = dataclasses.field(default_factory=list)
    enqueue: list[float] = dataclasses.field(default_factory=list)
    report: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def warm(self) -> float:
        return statistics.median(self.groups)

    @property
    def spread(self) -> float:
        return (max(self.groups) - min(self.groups)) / self.warm


def measure(workload: str, contenders: Sequence[str], rounds: int, seconds: float, jax_python: str) -> list[Result]:
    """All contenders on one workload, taking turns."""
    with tempfile.TemporaryDirectory() as caches:

        def child(contender: str) -> Child:
            return Child(contender, workload, os.path.join(caches, contender), jax_python)

        results = {c: Result(c) for c in contenders}
        children: dict[str, Child] = {}
        counts: dict[str, int] = {}
        for contender, result in results.items():
            try:
                children[contender] = child(contender)
                result.first = children[contender].ask(do="first")["seconds"]
                # The second and third step may still compile (optimizer state exists now); then calibrate.
                for count in (1, 1, 1, 2):
                    warm = children[contender].ask(do="group", count=count, sync=True)["seconds"]
                per = 1000 if workload == "chained_add" else 1
                counts[contender] = max(1, min(1000, round(seconds / (warm * per))))
            except RuntimeError as error:
                result.error = str(error)
        for turn in range(rounds + 1):
            for contender, count in counts.items():
                for sync, into in ((True, "groups"), (False, "enqueue")):
                    if workload != "chained_add" and not sync:
                        continue
                    try:
                        time_per = children[contender].ask(do="group", count=count, sync=sync)["seconds"]
                    except RuntimeError as error:
                        results[contender].error = str(error)
                        continue
                    if turn > 0:  # the first turn warms up
                        getattr(results[contender], into).append(time_per)
        for contender, result in results.items():
            if not result.error:
                result.report = children[contender].ask(do="report")
            if contender in children:
                children[contender].close()
            if not result.error:
                again = child(contender)
                result.second_process = again.ask(do="first")["seconds"]
                again.close()
        return list(results.values())


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def agreement(result: Result, reference: Result | None) -> str:
    """Largest relative difference of the workload's check numbers to native's.

    A step count of its own per contender moves trained losses apart, so training workloads are compared by
    the test suite and not here.
    """
    if reference is None or result is reference:
        return ""
    got, want = result.report["check"], reference.report["check"]
    return f"{max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(got, want, strict=True)):.0e}"


def rows(workload: str, results: list[Result]) -> list[str]:
    native = next((r for r in results if r.contender == "native" and not r.error), None)
    lines = []
    for r in results:
        if r.error:
            lines.append(f"| {workload} | {r.contender} | {r.error.splitlines()[-1]} | | | | | |")
            continue
        ratio = f"{r.warm / native.warm:.2f}" if native else ""
        extra = []
        if r.enqueue:
            extra.append(f"enqueue alone {duration(statistics.median(r.enqueue))}")
        if r.contender != "native":
            if workload in ("bert_inference", "greedy_decode"):
                extra.append(f"largest relative difference {agreement(r, native)}")
            if r.report.get("host_fallbacks"):
                extra.append(f"host fallbacks {r.report['host_fallbacks']}")
        lines.append(
            f"| {workload} | {r.contender} | {duration(r.first)} | {duration(r.second_process)} | "
            f"{duration(r.warm)} ± {100 * r.spread / 2:.0f} % | {ratio} | "
            f"{r.report['rss'] / 2**30:.2f} GiB | {'; '.join(extra)} |"
        )
    return lines


HEADER = (
    "| workload | mode | first step | first, second process | warm | / native | peak RSS | |\n"
    "|---|---|---|---|---|---|---|---|"
)


def machine() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    model = ""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((s.split(":")[1].strip() for s in cpuinfo.read_text().splitlines() if "model name" in s), "")
    import torch

    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": " ".join(sys.argv),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=WORKLOADS, choices=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--contenders", nargs="+", default=USUAL, choices=CONTENDERS)
    parser.add_argument("--jax-python", default=sys.executable, metavar="FILE", help="interpreter with jax")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one group of steps")
    parser.add_argument("--json", metavar="FILE", help="write every measurement there")
    parser.add_argument("--serve", metavar="CONTENDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.only[0])
        return 0
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()) + "\n\n" + HEADER, flush=True)
    everything: dict[str, Any] = {"machine": about, "workloads": {}}
    failed = False
    for workload in args.only:
        results = measure(workload, args.contenders, args.rounds, args.seconds, args.jax_python)
        print("\n".join(rows(workload, results)), flush=True)
        everything["workloads"][workload] = [dataclasses.asdict(r) for r in results]
        failed = failed or any(r.error for r in results)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(everything, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
