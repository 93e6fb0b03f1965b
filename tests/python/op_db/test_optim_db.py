"""PyTorch's database of optimizers: what an entry does on the device and on the CPU is the same. By default some
options of each entry, in the full run all options and dtypes; see optimizers.py for the checks."""

from __future__ import annotations

import os

import known
import pytest
from cases import Outcome, run
from optimizers import CHECKS, OPTIMIZERS

FULL = os.environ.get("TORCH_TPU_TEST_FULL") == "1"

# The quick run takes every entry for some checks and every so many of them for others.
EVERY = {"steps": 1, "saved_state": 3, "groups": 3, "schedules": 3, "mixed": 1, "error": 1}
PARAMETERS = [
    pytest.param(name, check, id=f"{check}-{name}", marks=[pytest.mark.quick] * (i % EVERY[check] == 0))
    for check in CHECKS
    for i, name in enumerate(OPTIMIZERS)
]


@pytest.mark.parametrize(("entry", "check"), PARAMETERS)
def test_entry(entry: str, check: str) -> None:
    outcome = run(CHECKS[check](OPTIMIZERS[entry], FULL), Outcome())
    known.assert_expected(outcome, entry, check, known.OPTIMIZERS)


def test_table_of_known_failures_names_entries() -> None:
    for line in known.OPTIMIZERS:
        assert set(line.entries.split()) <= set(OPTIMIZERS)
        assert set(line.checks) <= set(CHECKS)
