"""PyTorch's operator database: what an entry does on the device and on the CPU is the same. By default the first
sample of each entry, in the full run all samples of all dtypes; see cases.py for the checks."""

from __future__ import annotations

import os

import known
import pytest
from cases import CHECKS, COMPILED, run_entry
from entries import ENTRIES, FULL, QUICK

EXTENT = FULL if os.environ.get("TORCH_TPU_TEST_FULL") == "1" else QUICK

# The quick run takes every entry here and a sixth of them for the other checks, which differ from the function by code
# that all operators share.
THOROUGH = ("forward", "gradient", "error")
PARAMETERS = [
    pytest.param(name, check, id=f"{check}-{name}", marks=[pytest.mark.quick] * (check in THOROUGH or i % 6 == 0))
    for check in CHECKS
    for i, name in enumerate(ENTRIES)
]


@pytest.mark.parametrize(("entry", "check"), PARAMETERS)
def test_entry(entry: str, check: str) -> None:
    known.assert_expected(run_entry(entry, check, extent=EXTENT), entry, check)


def test_table_of_known_failures_names_entries() -> None:
    for line in known.KNOWN:
        assert set(line.entries.split()) <= set(ENTRIES)
        assert set(line.checks) <= set(CHECKS | COMPILED)
