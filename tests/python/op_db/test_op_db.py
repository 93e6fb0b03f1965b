"""PyTorch's operator database: what an entry does on the device and on the CPU is the same. By default the first
sample of each entry, in the full run all samples of all dtypes; see cases.py for the checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import known
import pytest
import table
from cases import CHECKS, COMPILED, run_entry
from entries import ENTRIES, QUICK, SLICES, Extent, dtypes

FULL = os.environ.get("TORCH_TPU_TEST_FULL") == "1"

# The quick run takes every entry here and a sixth of them for the other checks, which differ from the function by code
# that all operators share.
THOROUGH = ("forward", "gradient", "error")


def parameters() -> Iterator[Any]:
    for check in CHECKS:
        for i, (name, op) in enumerate(ENTRIES.items()):
            if not FULL or check == "error":
                marks = [pytest.mark.quick] * (check in THOROUGH or i % 6 == 0)
                yield pytest.param(name, check, QUICK, id=f"{check}-{name}", marks=marks)
                continue
            count = SLICES.get(name, 1)
            for dtype in dtypes(op):
                for k in range(count):
                    extent = Extent(every_dtype=True, samples=None, dtype=dtype, slice=(k, count))
                    number = f"-{k + 1}of{count}" if count > 1 else ""
                    yield pytest.param(
                        name, check, extent, id=f"{check}-{name}-{str(dtype).removeprefix('torch.')}{number}"
                    )


@pytest.mark.parametrize(("entry", "check", "extent"), parameters())
def test_entry(entry: str, check: str, extent: Extent) -> None:
    known.assert_expected(run_entry(entry, check, extent=extent), entry, check, part=extent.dtype is not None)


def test_table_of_known_failures_names_entries() -> None:
    for line in known.KNOWN:
        assert set(line.entries.split()) <= set(ENTRIES)
        assert set(line.checks) <= set(CHECKS | COMPILED)


def test_table_of_a_report_adds_up_cases() -> None:
    def line(entry: str, result: str, **dtypes: list[int]) -> dict[str, object]:
        totals = dict(zip(table.RESULTS, (sum(column) for column in zip(*dtypes.values(), strict=True)), strict=False))
        return {"check": "forward", "entry": entry, "result": result, "dtypes": dtypes, **totals}

    lines = [
        line("add", "passed", float32=[3, 0, 1], bfloat16=[2, 0, 0], bool=[1, 0, 0]),
        line("sort", "failed", float64=[4, 1, 0], float16=[0, 5, 0]),
        {"check": "forward", "entry": "eig", "result": "crashed"},
    ]
    last = table.markdown(lines).splitlines()[-1]
    assert last == "| forward | 1 | 2 | 0 | 0 | 10 / 6 / 1 | 7 / 1 / 1 | 2 / 5 / 0 | - | - | 1 / 0 / 0 |"
