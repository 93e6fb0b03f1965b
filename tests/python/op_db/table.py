"""What lines of report.py add up to, in Markdown: entries and cases of each check, by classes of dtypes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import Any

# As the labels of cases begin. What is of no dtype, such as a wrong call, counts in the totals only.
CLASSES = {
    "floating": ("float32", "float64"),
    "half": ("float16", "bfloat16"),
    "complex": ("complex64", "complex128"),
    "integer": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "bool": ("bool",),
}
RESULTS = ("passed", "failed", "refused", "unfinished")


def read(files: Iterable[str]) -> list[dict[str, Any]]:
    """The lines of files. Of an entry and check that is in several, the last counts, as one that was run again."""
    lines = (json.loads(line) for name in files for line in pathlib.Path(name).read_text().splitlines())
    return list({(line["check"], line["entry"]): line for line in lines}.values())


def markdown(outcomes: Iterable[dict[str, Any]]) -> str:
    """One row a check. Entries: passed, failed (crashed and hung ones too), refused, unfinished. Cases: passed / failed
    / refused, of all and of each class."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        checks.setdefault(outcome["check"], []).append(outcome)
    head = ["check", "entries passed", *RESULTS[1:], "cases", *CLASSES]
    rows = [head, ["---"] * len(head), *([check, *_row(lines)] for check, lines in checks.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(outcomes: list[dict[str, Any]]) -> list[str]:
    results = [o["result"] if o["result"] in RESULTS else "failed" for o in outcomes]
    everything = [[o.get(result, 0) for result in RESULTS[:3]] for o in outcomes]
    by_class = [
        [counts for o in outcomes for dtype, counts in o.get("dtypes", {}).items() if dtype in dtypes]
        for dtypes in CLASSES.values()
    ]
    return [str(results.count(result)) for result in RESULTS] + [_sum(counts) for counts in (everything, *by_class)]


def _sum(counts: list[list[int]]) -> str:
    return " / ".join(str(sum(column)) for column in zip(*counts, strict=True)) or "-"
