"""Compiles programs for hardware that is not there: libtpu knows every TPU and needs none for it.

    python -m torch_tpu._internal.topology FOLDER --topology v5e:2x2

compiles every program that ``TORCH_TPU_DUMP_DIR=FOLDER`` left, and prints those that the compiler refuses.

A plugin's compiler may abort its process, or take for ever. So it runs in a child process with a limit for each
program, and a new child continues after the program that ended one. Nothing here imports libtpu: the engine finds its
file among the installed packages.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DEFAULT_PROVIDER = "libtpu"
DEFAULT_TOPOLOGY = "v5e:2x2"
# Starting a child imports torch and loads half a gigabyte of compiler.
START_SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    """What the compiler said of one program: ``error`` is None where it was accepted."""

    path: pathlib.Path
    error: str | None
    seconds: float


def libtpu_installed() -> bool:
    """Whether the package with the TPU compiler is there. It is not imported."""
    return importlib.util.find_spec("libtpu") is not None


def compile_programs(
    paths: Sequence[pathlib.Path],
    topology: str = DEFAULT_TOPOLOGY,
    *,
    provider: str = DEFAULT_PROVIDER,
    program_seconds: float = 60.0,
) -> Iterator[Outcome]:
    """Compiles files of StableHLO text for ``topology``, in order, and yields what became of each.

    Args:
        program_seconds: one that takes longer counts as refused.

    Raises:
        RuntimeError: the compiler does not start, or does not know the topology.
    """
    remaining = list(paths)
    while remaining:
        done = 0
        for outcome in _one_child(remaining, topology, provider, program_seconds):
            done += 1
            yield outcome
        del remaining[:done]


def _one_child(paths: list[pathlib.Path], topology: str, provider: str, program_seconds: float) -> Iterator[Outcome]:
    """Yields outcomes until all is done or the child has ended; the program that ended it is the last one then."""
    command = [sys.executable, "-m", __spec__.name, "--child", provider, topology, str(program_seconds)]
    with tempfile.TemporaryFile("w+") as list_of_paths, tempfile.TemporaryFile("w+") as messages:
        list_of_paths.write("\n".join(map(str, paths)))
        list_of_paths.seek(0)
        with subprocess.Popen(
            command, stdin=list_of_paths, stdout=subprocess.PIPE, stderr=messages, text=True, env=child_environment()
        ) as child:
            assert child.stdout is not None
            try:
                started = False
                done = 0
                since = time.monotonic()
                for line in child.stdout:
                    if line == "ready\n":
                        started = True
                    elif line.startswith("{"):
                        answer = json.loads(line)
                        yield Outcome(paths[done], answer["error"], answer["seconds"])
                        done += 1
                    since = time.monotonic()
            finally:
                child.kill()  # where the caller has enough; a child at its end is gone already
        messages.seek(0)
        tail = "\n".join(messages.read().splitlines()[-20:])
        if not started:
            raise RuntimeError(f"the compiler of {provider} for {topology} did not start:\n{tail}")
        if done < len(paths):
            seconds = time.monotonic() - since
            late = seconds >= program_seconds
            why = f"no answer after {program_seconds:g} s" if late else f"the compiler ended its process:\n{tail}"
            yield Outcome(paths[done], why, seconds)


def child_environment() -> dict[str, str]:
    """The environment of a process that compiles for other devices than the engine's own."""
    # A process in which the device is turned off may compile all the same, and a list of flags for the engine's own
    # plugin is none for this one: XLA ends the process over a flag that it does not know.
    return {name: value for name, value in os.environ.items() if name not in ("TORCH_DEVICE", "XLA_FLAGS")}


def _child(provider: str, topology: str, program_seconds: float) -> None:
    """Compiles the files named on stdin. A watchdog thread of C, which needs no GIL, ends the process when time is up,
    whatever the compiler is doing."""
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    from torch_tpu import _C

    target = _C.Topology(provider, topology)
    print("ready", flush=True)
    for line in sys.stdin:
        text = pathlib.Path(line.rstrip("\n")).read_text()
        faulthandler.dump_traceback_later(program_seconds, exit=True)
        start = time.monotonic()
        error = None
        try:
            target.compile(text)
        except (RuntimeError, NotImplementedError) as refusal:
            error = str(refusal)
        print(json.dumps({"error": error, "seconds": time.monotonic() - start}), flush=True)
    # A compiler with threads of its own need not be waited for.
    os._exit(0)


def main(arguments: list[str]) -> int:
    """The command line: 0 if every program was accepted."""
    if arguments[:1] == ["--child"]:
        provider, topology, program_seconds = arguments[1:]
        _child(provider, topology, float(program_seconds))
    parser = argparse.ArgumentParser(prog="python -m torch_tpu._internal.topology")
    parser.add_argument("folder", type=pathlib.Path, help="where TORCH_TPU_DUMP_DIR left programs")
    parser.add_argument("--topology", default=DEFAULT_TOPOLOGY)
    parser.add_argument("--program-seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    paths = sorted(options.folder.glob("*.mlir"))
    refused = 0
    for outcome in compile_programs(paths, options.topology, program_seconds=options.program_seconds):
        if outcome.error is not None:
            refused += 1
            print(f"{outcome.path.name} ({outcome.seconds:.1f} s): {outcome.error}", flush=True)
    print(f"{len(paths) - refused} of {len(paths)} programs compile for {options.topology}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
