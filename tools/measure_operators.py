#!/usr/bin/env python3
"""Writes docs/operators.json: for which dtypes operators are served and how, and what the Neuron compiler would refuse.

    python tools/measure_operators.py [DTYPE ...]    # all by default; what is known of the others stays

Needs the fake plugin of the C++ tests (make test-cpp) and takes some minutes. tools/operators_page.py makes a page of
it; tests/python/test_neuron_limits.py checks that it is up to date.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

import neuron_table  # noqa: E402
import row_programs  # noqa: E402

MEASURED = ROOT / "docs" / "operators.json"
# Of each class of docs/operators.md at least one.
DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64", "int64", "int32", "uint8", "uint32", "bool")


def main() -> None:
    chosen = sys.argv[1:] or DTYPES
    known = json.loads(MEASURED.read_text()) if sys.argv[1:] else {"served": {}, "neuron": {}}
    served: dict[str, dict[str, str]] = {
        name: {dtype: how for dtype, how in by_dtype.items() if dtype not in chosen}
        for name, by_dtype in known["served"].items()
    }
    neuron: dict[str, dict[str, list[str]]] = known["neuron"]
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in chosen:
            folder = pathlib.Path(scratch) / dtype
            calls = row_programs.emit(folder, dtype, measure=True)
            if dtype in neuron_table.DTYPES:
                neuron[dtype] = neuron_table.refusals(folder, calls["rows"])
            for name, outcomes in calls["served"].items():
                if dtype in outcomes:
                    served.setdefault(name, {})[dtype] = outcomes[dtype]
            print(dtype, len(calls["rows"]), "rows", flush=True)
    by_name = {name: dict(sorted(by_dtype.items())) for name, by_dtype in sorted(served.items()) if by_dtype}
    measured = {"served": by_name, "neuron": {dtype: neuron[dtype] for dtype in sorted(neuron)}}
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
