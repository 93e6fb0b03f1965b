"""What the Neuron compiler would refuse of the programs that each row emits, by our rules (_C.neuron_refusals)."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping, Sequence

from torch_tpu import _C

# float64 and complex are refused by their types, and float16 is as bfloat16.
DTYPES = ("float32", "bfloat16", "int64", "int32", "bool")


def _is_wanted(reason: str, text: str) -> bool:
    """Whether a type is there because the caller's arguments or results have it."""
    signature = text[text.index("@main(") : text.index("\n", text.index("@main("))]
    return (reason == "float64" and "f64>" in signature) or (reason == "complex" and "complex<" in signature)


def refusals(folder: pathlib.Path, rows: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Row -> reasons, for the rows of which a program meets some. A row has several forms, of which the others may be
    taken."""

    @functools.cache
    def of(name: str) -> list[str]:
        text = (folder / name).read_text()
        return [reason for reason in _C.neuron_refusals(text) if not _is_wanted(reason, text)]

    found = {row: sorted({reason for name in names for reason in of(name)}) for row, names in sorted(rows.items())}
    return {row: reasons for row, reasons in found.items() if reasons}
