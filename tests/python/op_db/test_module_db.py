"""PyTorch's database of modules: what an entry does on the device and on the CPU is the same. By default the first
sample of each entry, in the full run all samples of all dtypes; see modules.py for the checks."""

from __future__ import annotations

import os

import known
import pytest
from cases import Outcome, run
from modules import CHECKS, MODULES

FULL = os.environ.get("TORCH_TPU_TEST_FULL") == "1"

# The quick run takes every entry for some checks and every so many of them for others.
EVERY = {"forward": 1, "gradient": 3, "copies": 6, "factory": 6, "error": 1}
PARAMETERS = [
    pytest.param(name, check, id=f"{check}-{name}", marks=[pytest.mark.quick] * (i % EVERY[check] == 0))
    for check in CHECKS
    for i, name in enumerate(MODULES)
]


@pytest.mark.parametrize(("entry", "check"), PARAMETERS)
def test_entry(entry: str, check: str) -> None:
    outcome = run(CHECKS[check](MODULES[entry], FULL), Outcome())
    known.assert_expected(outcome, entry, check, known.MODULES)


def test_table_of_known_failures_names_entries() -> None:
    for line in known.MODULES:
        assert set(line.entries.split()) <= set(MODULES)
        assert set(line.checks) <= set(CHECKS)
