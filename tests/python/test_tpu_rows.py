"""Every row of the lowering table compiles for a TPU v5e: by libtpu's own compiler, which needs no TPU for it."""

from __future__ import annotations

import os
import pathlib

import pytest
import row_programs
import torch_tpu
from torch_tpu._internal import topology

FULL = os.environ.get("TORCH_TPU_TEST_FULL") == "1"
# Of the rows, `make test` compiles every so many-th: a program takes some 0.1 s.
STRIDE = 8
# A program may take half a minute alone (SLOW), and several times that on a machine with other work.
SECONDS = 300

# Rows whose programs take the compiler long: loops in float64, which a TPU emulates.
SLOW = {"igamma", "igammac", "_dirichlet_grad", "_standard_gamma_grad"}

# (row, dtype) -> what the compiler says. Checked both ways.
REFUSED = {
    ("convolution", "int64"): "s64",  # no 64-bit integer convolution on TPUs
    ("_fft_c2c", "float64"): "Unexpected operand type for FFT",
    ("_fft_c2r", "float64"): "Unexpected operand type for FFT",
    ("_fft_r2c", "float64"): "Unexpected operand type for FFT",
}

pytestmark = [
    pytest.mark.skipif(not row_programs.FAKE.exists(), reason="the fake plugin is built with the C++ tests"),
    pytest.mark.skipif(not topology.libtpu_installed(), reason="pip install -r requirements/test.txt"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[pathlib.Path]]]:
    """Of dtypes as they are asked for: row -> programs."""
    folder = tmp_path_factory.mktemp("programs")

    class Emitted(dict[str, dict[str, list[pathlib.Path]]]):
        def __missing__(self, dtype: str) -> dict[str, list[pathlib.Path]]:
            row_programs.emit(folder / dtype, dtype)
            self[dtype] = row_programs.programs_by_row(folder / dtype)
            return self[dtype]

    return Emitted()


def test_every_row_is_emitted(programs: dict[str, dict[str, list[pathlib.Path]]]) -> None:
    missing = set(torch_tpu.operators()) - programs["float32"].keys()
    assert not missing, f"neither the operator database nor row_calls.py calls {sorted(missing)}"


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        *(
            pytest.param(dtype, marks=pytest.mark.slow)
            for dtype in ("bfloat16", "float16", "float64", "complex64", "int64", "int32", "uint8", "bool")
        ),
    ],
)
def test_rows_compile_for_v5e(programs: dict[str, dict[str, list[pathlib.Path]]], dtype: str) -> None:
    """The longest program of each row that the first samples of the dtype emit."""
    by_row = {row: paths[0] for row, paths in programs[dtype].items()}
    rows = sorted(by_row) if FULL else sorted(by_row.keys() - SLOW)[::STRIDE]
    assert len(rows) > 20
    paths = sorted({by_row[row] for row in rows})
    outcomes = {o.path: o.error for o in topology.compile_programs(paths, program_seconds=SECONDS)}
    refused = {row: outcomes[by_row[row]] for row in rows if outcomes[by_row[row]] is not None}
    surprises = {row: error for row, error in refused.items() if REFUSED.get((row, dtype), "\0") not in error}
    assert not surprises, "\n".join(f"{row}: {error}" for row, error in surprises.items())
    passing = {row for row in rows if (row, dtype) in REFUSED} - refused.keys()
    assert not passing, f"compile; take them off: {passing}"
