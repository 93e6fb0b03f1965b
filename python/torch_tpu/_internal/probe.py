"""Tries the plugin in a child process, where it may abort or hang without harm. Needs neither torch nor the extension
module, so it works where those are broken."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class ProbeResult:
    """What the child said: facts in order, some keys several times (``device``, ``healthy``), and the failure."""

    facts: list[tuple[str, str]]
    error: str | None

    def first(self, key: str) -> str | None:
        """The first fact of that name."""
        return next((value for name, value in self.facts if name == key), None)

    def all(self, key: str) -> list[str]:
        """All facts of that name."""
        return [value for name, value in self.facts if name == key]


def search_path() -> list[str]:
    """Folders in which packages with plugins are looked for, in Python's own order. The current folder is left out: a
    library that happens to lie there is not installed."""
    folders = dict.fromkeys(os.path.abspath(entry) for entry in sys.path if entry and os.path.isabs(entry))
    return [folder for folder in folders if os.path.isdir(folder)]


def run(timeout: float | None = None) -> ProbeResult:
    """Starts the plugin in a child process and runs a small program on each of its devices.

    Args:
        timeout: seconds before the child is killed; ``TORCH_TPU_INIT_TIMEOUT``, or a minute, if None.

    Never raises for what the plugin does.
    """
    seconds = _default_timeout() if timeout is None else timeout
    program = pathlib.Path(__file__).resolve().parent.parent / "tpu_probe"
    command = [str(program), *search_path()]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return ProbeResult(_facts(late.stdout or b""), f"the plugin did not answer within {seconds:g} seconds")
    except OSError as error:
        return ProbeResult([], f"{program} cannot be run: {error}")
    facts = _facts(done.stdout)
    reported = next((value for key, value in facts if key == "error"), None)
    if done.returncode == 0 or reported is not None:
        return ProbeResult(facts, reported)
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return ProbeResult(facts, f"the plugin ended its process ({how}): {lines[-1] if lines else 'it gave no reason'}")


def _default_timeout() -> float:
    try:
        return float(os.environ.get("TORCH_TPU_INIT_TIMEOUT") or DEFAULT_TIMEOUT)
    except ValueError:
        return DEFAULT_TIMEOUT


def _facts(output: bytes) -> list[tuple[str, str]]:
    pairs = (line.split("\t", 1) for line in output.decode(errors="replace").splitlines() if "\t" in line)
    return [(pair[0], pair[1]) for pair in pairs]
