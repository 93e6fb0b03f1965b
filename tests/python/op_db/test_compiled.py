"""PyTorch's operator database under torch.compile: the first sample of each entry, forward and backward, is on the
device what it is without torch.compile on the CPU. By default some entries, spread over all; in the full run every
one."""

from __future__ import annotations

import known
import pytest
from cases import COMPILED, run_entry
from entries import ENTRIES, QUICK

# Each costs a second or two of tracing and compiling.
SPREAD = 48
PARAMETERS = [
    pytest.param(name, check, id=f"{check}-{name}", marks=[pytest.mark.quick] * (i % SPREAD == 0))
    for check in COMPILED
    for i, name in enumerate(ENTRIES)
]


@pytest.mark.parametrize(("entry", "check"), PARAMETERS)
def test_entry(entry: str, check: str) -> None:
    known.assert_expected(run_entry(entry, check, extent=QUICK), entry, check)
