"""Compiles one program for a topology, in a child process: a plugin's compiler may end its process, or never answer."""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from torch_tpu._internal.topology import START_SECONDS, child_environment


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler said. Where it refused the program, `error` is its text and the rest is empty."""

    error: str | None
    seconds: float
    device_kind: str
    device_count: int
    device_bytes: int | None  # memory of one device; None where the plugin does not say
    environment: str  # what the executable depends on besides the program
    memory: dict[str, int]
    cost: dict[str, float]
    optimized: bytes
    executable: bytes


def compile_text(text: str, topology: str, *, provider: str, timeout: float, keep_executable: bool) -> Compiled:
    """Compiles StableHLO text.

    Raises:
        RuntimeError: the compiler does not start, or does not know the topology.
        TimeoutError: no answer within `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "program.mlir").write_text(text)
        start = f"from {__name__} import child; child()"
        command = [sys.executable, "-c", start, str(folder), provider, topology, str(int(keep_executable))]
        messages = folder / "messages"
        with messages.open("w") as errors:
            child = subprocess.Popen(command, stdout=errors, stderr=errors, env=child_environment())
            try:
                child.wait(timeout + START_SECONDS)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the compiler of {provider} gave no answer within {timeout:g} s") from None
            finally:
                child.kill()
                child.wait()
        if not (folder / "answer.json").exists():
            tail = "\n".join(messages.read_text(errors="replace").splitlines()[-20:])
            refusal = folder / "refusal"
            if refusal.exists():
                raise RuntimeError(f"{provider} does not compile for {topology!r}: {refusal.read_text()}")
            raise RuntimeError(f"the compiler of {provider} ended its process:\n{tail}")
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
        return Compiled(**answer, optimized=_read(folder / "optimized"), executable=_read(folder / "executable"))


def _read(path: pathlib.Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def child() -> None:
    """The process that compiles; its arguments are the command line's."""
    folder, provider, name, keep_executable = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "1"
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    from torch_tpu import _C

    try:
        topology = _C.Topology(provider, name)
    except RuntimeError as refusal:
        (folder / "refusal").write_text(str(refusal))
        os._exit(1)
    faulthandler.cancel_dump_traceback_later()
    limit = topology.device_attributes.get("device_memory_bytes_limit")
    answer: dict[str, Any] = {
        "error": None,
        "device_kind": topology.device_kind,
        "device_count": topology.device_count,
        "device_bytes": int(limit) if limit else None,
        "environment": topology.environment,
        "memory": {},
        "cost": {},
    }
    start = time.monotonic()
    try:
        program = topology.compile((folder / "program.mlir").read_text())
    except (RuntimeError, NotImplementedError) as refusal:
        answer["error"] = str(refusal)
    answer["seconds"] = time.monotonic() - start
    if answer["error"] is None:
        answer["memory"] = program.memory()
        answer["cost"] = {k: v for k, v in program.cost().items() if "{" not in k}
        form, optimized = program.optimized()
        if form == "hlo_with_config":
            (folder / "optimized").write_bytes(optimized)
        if keep_executable:
            (folder / "executable").write_bytes(program.serialize())
    # In one step: the parent reads it whole or not at all.
    (folder / "answer.part").write_text(json.dumps(answer))
    (folder / "answer.part").rename(folder / "answer.json")
    os._exit(0)  # a compiler with threads of its own need not be waited for
