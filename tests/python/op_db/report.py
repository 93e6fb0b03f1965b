"""What the device does with each entry of the operator database, as JSON lines.

    python tests/python/op_db/report.py --check forward gradient error [--full | --samples N] [--only NAME ...] > FILE
    python tests/python/op_db/report.py --table FILE ...

One line an entry and check: {"entry", "check", "result", "passed", "failed", "refused", "dtypes", "cause", "seconds"},
where result is passed, failed (other numbers, other errors, or a missing operator), refused (nothing to compare: not
differentiable, no such samples, or refused by the CPU as well), crashed, hung, or unfinished (cases followed each other
until the deadline; those counted are right, the others were not reached); passed, failed and refused count cases, which
dtypes counts for each dtype, and cause says for each that failed why. Entries run in child processes, each guarded by
the deadline, so that one that aborts costs its own line only. --table adds lines up (table.py).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = (
    "forward", "gradient", "double_gradient", "forward_mode", "error", "inplace", "out", "noncontiguous", "layouts",
    "traced", "compiled", "compiled_gradient",
)  # fmt: skip


def work(check: str, deadline: int, samples: int | None) -> None:
    """The child: reads names of entries, answers each with one line."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    os.environ.setdefault("TORCH_TPU_HOST_FALLBACK", "error")
    os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(HERE.parents[2] / "build" / "test-cache"))
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    faulthandler.enable()
    import cases
    from entries import FULL, QUICK, Extent

    extent = QUICK if samples is None else Extent(every_dtype=True, samples=samples) if samples else FULL

    def give_up(*_: object) -> None:
        raise cases.DeadlinePassed

    signal.signal(signal.SIGALRM, give_up)
    for line in sys.stdin:
        name = line.strip()
        started = time.monotonic()
        signal.alarm(deadline)
        found, unfinished = cases.Outcome(), dict[str, str]()
        try:
            cases.run_entry(name, check, extent=extent, outcome=found)
        except cases.DeadlinePassed:
            unfinished = {"result": "unfinished"}
        signal.alarm(0)
        outcome = {**summary(found), **unfinished}
        outcome = {"entry": name, "check": check, **outcome, "seconds": round(time.monotonic() - started, 2)}
        print(json.dumps(outcome), file=answers, flush=True)


def summary(outcome: Any) -> dict[str, Any]:
    """What a line says about an outcome: counts, of every dtype too, and where it failed."""
    causes = {label: cause[:600] for label, cause in outcome.failed.items()}
    dtypes: dict[str, list[int]] = {}
    for place, labels in enumerate((outcome.passed, outcome.failed, outcome.refused)):
        for label in labels:
            dtypes.setdefault(label.split()[0], [0, 0, 0])[place] += 1
    counts = {"passed": len(outcome.passed), "failed": len(causes), "refused": len(outcome.refused)}
    return {"result": outcome.result, **counts, "dtypes": dtypes, "cause": causes}


class Child:
    """A worker, and the entry that it works on."""

    def __init__(self, check: str, deadline: int, samples: int | None) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the child
        arguments = [sys.executable, __file__, "--work", check, "--deadline", str(deadline)]
        self.process = subprocess.Popen(
            arguments + ([] if samples is None else ["--samples", str(samples)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        # The first entry also pays for the imports.
        self.deadline = deadline * 2 + 60

    def ask(self, name: str) -> dict[str, Any] | None:
        """The answer, or None where the process died or had to be killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(self.deadline):
                self.process.kill()
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def last_words(self, characters: int = 3000) -> str:
        """The end of what it wrote to its standard error: where it crashed."""
        self.log.seek(0)
        return self.log.read()[-characters:]

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()


def run(
    names: Iterable[str], check: str, deadline: int, samples: int | None, chunk: int = 100
) -> Iterator[dict[str, Any]]:
    """Outcomes of one check. A child serves `chunk` entries, so that no state of hundreds of them piles up."""
    child: Child | None = None
    served = 0
    for name in names:
        if child is None or served >= chunk:
            if child is not None:
                child.close()
            child, served = Child(check, deadline, samples), 0
        served += 1
        outcome = child.ask(name)
        if outcome is None:
            status, died, child = child.close(), child, None
            result = "hung" if status == -signal.SIGKILL else "crashed"
            cause = f"exit status {status}\n{died.last_words()}"
            outcome = {"entry": name, "check": check, "result": result, "cause": cause}
        yield outcome
    if child is not None:
        child.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", choices=CHECKS, default=list(CHECKS[:3]))
    parser.add_argument("--only", nargs="*", help="names of entries; all by default")
    parser.add_argument("--samples", type=int, help="of every dtype so many samples, not the first of the first only")
    parser.add_argument("--full", dest="samples", action="store_const", const=0, help="all samples of every dtype")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th entry, from the I-th")
    parser.add_argument("--deadline", type=int, default=60, help="seconds for one entry")
    parser.add_argument(
        "--table", nargs="+", metavar="FILE", help="print what the lines of files add up to, and no more"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.deadline, options.samples)
        return
    sys.path.insert(0, str(HERE))
    if options.table:
        import table

        print(table.markdown(table.read(options.table)))
        return
    from entries import ENTRIES

    counts: dict[tuple[str, str], int] = {}
    first, step = map(int, options.shard.split("/"))
    names = options.only or list(ENTRIES)[first::step]
    for check in options.check:
        for outcome in run(names, check, options.deadline, options.samples):
            print(json.dumps(outcome), flush=True)
            key = (check, outcome["result"])
            counts[key] = counts.get(key, 0) + 1
    for (check, result), count in sorted(counts.items()):
        print(f"{check}: {count} {result}", file=sys.stderr)


if __name__ == "__main__":
    main()
