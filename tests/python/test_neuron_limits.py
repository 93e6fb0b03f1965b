"""What the Neuron compiler refuses: one program for each rule, the error before a compile, and the table of docs/."""

from __future__ import annotations

import json
import os
import pathlib

import neuron_table
import pytest
import row_programs
from conftest import ROOT
from torch_tpu import _C

FULL = os.environ.get("TORCH_TPU_TEST_FULL") == "1"
needs_fake = pytest.mark.skipif(not row_programs.FAKE.exists(), reason="the fake plugin is built with the C++ tests")


def program(body: str, types: str = "%0: tensor<4xf32>, %1: tensor<4xi32>, %2: tensor<4xi64>") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"module @program {{\n  func.func public @main({types}) -> () {{\n{lines}\n    return\n  }}\n}}\n"


def loop(start: str, condition: str) -> str:
    return (
        f'{start}\n%6, %7 = "stablehlo.while"(%5, %0) ({{\n^bb0(%8: tensor<i32>, %9: tensor<4xf32>):\n{condition}\n'
        "stablehlo.return %20 : tensor<i1>\n}, {\n^bb0(%10: tensor<i32>, %11: tensor<4xf32>):\n"
        "stablehlo.return %10, %11 : tensor<i32>, tensor<4xf32>\n"
        "}) : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)"
    )


def sort(comparator: str) -> str:
    return (
        f'%5 = "stablehlo.sort"(%0) ({{\n^bb0(%6: tensor<f32>, %7: tensor<f32>):\n{comparator}\n'
        "stablehlo.return %8 : tensor<i1>\n}) {dimension = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>"
    )


def window(base: str, dilation: str) -> str:
    return (
        '%5 = "stablehlo.reduce_window"(%0, %3) ({\n^bb0(%6: tensor<f32>, %7: tensor<f32>):\n'
        "%8 = stablehlo.add %6, %7 : tensor<f32>\nstablehlo.return %8 : tensor<f32>\n"
        f"}}) {{window_dimensions = array<i64: 2>, base_dilations = array<i64: {base}>, "
        f"window_dilations = array<i64: {dilation}>}} : (tensor<4xf32>, tensor<f32>) -> tensor<3xf32>"
    )


ZERO = "%5 = stablehlo.constant dense<0> : tensor<i32>"
LIMIT = "%19 = stablehlo.constant dense<9> : tensor<i32>\n"
COUNT = LIMIT + "%20 = stablehlo.compare LT, %8, %19, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>"
LESS = "%8 = stablehlo.compare LT, %6, %7, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>"
DOT = "%5 = stablehlo.dot_general %0, %0, contracting_dims = [0] x [0] : (tensor<4x{0}>, tensor<4x{0}>) -> tensor<{0}>"
SCATTER = (
    '%5 = "stablehlo.scatter"(%0, %1, %0) ({\n^bb0(%6: tensor<TYPE>, %7: tensor<TYPE>):\n'
    "stablehlo.return %7 : tensor<TYPE>\n"
    "}) {unique_indices = false} : (tensor<4xTYPE>, tensor<4xi32>, tensor<4xTYPE>) -> tensor<4xTYPE>"
)

CASES = {
    "%5 = stablehlo.add %0, %0 : tensor<4xf32>": [],
    "%5 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xbf16>": [],
    "%5 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xf64>": ["float64"],
    "%5 = stablehlo.complex %0, %0 : tensor<4xcomplex<f32>>": ["complex"],
    "%5 = stablehlo.power %0, %0 : tensor<4xf32>": [],
    "%5 = stablehlo.power %1, %1 : tensor<4xi32>": ["integer power"],
    "%5 = stablehlo.shift_right_arithmetic %1, %1 : tensor<4xi32>": [],
    "%5 = stablehlo.shift_right_arithmetic %2, %2 : tensor<4xi64>": ["64-bit shift"],
    "%5 = stablehlo.shift_right_logical %2, %2 : tensor<4xi64>": [],
    "%5 = stablehlo.constant dense<4294967295> : tensor<4xi64>": [],
    "%5 = stablehlo.constant dense<4294967296> : tensor<4xi64>": ["64-bit constant"],
    "%5 = stablehlo.constant dense<[1, -2147483649]> : tensor<2xi64>": ["64-bit constant"],
    "%5 = stablehlo.constant dense<1.0e+30> : tensor<2xf32>": [],
    DOT.format("f32"): [],
    DOT.format("i32"): ["integer product"],
    "%5, %6 = chlo.top_k(%0, k = 2) : tensor<4xf32> -> (tensor<2xf32>, tensor<2xi32>)": [],
    "%5, %6 = chlo.top_k(%1, k = 2) : tensor<4xi32> -> (tensor<2xi32>, tensor<2xi32>)": ["integer top-k"],
    '%5, %6 = "stablehlo.rng_bit_generator"(%2) : (tensor<4xi64>) -> (tensor<4xi64>, tensor<4xi64>)': ["random bits"],
    loop(ZERO, COUNT): [],
    loop(ZERO.replace("constant dense<0>", "reshape %1"), COUNT): ["data-dependent loop"],
    loop(ZERO, "%19 = stablehlo.is_finite %9 : (tensor<4xf32>) -> tensor<4xi1>\n" + COUNT): ["data-dependent loop"],
    sort(LESS): [],
    sort(LESS.replace("LT", "NE")): ["sort comparator"],
    sort("%9 = stablehlo.negate %6 : tensor<f32>\n" + LESS): ["sort comparator"],
    window("1", "1"): [],
    window("2", "1"): ["dilated window"],
    window("1", "2"): ["dilated window"],
    window("1", "1").replace("%5 =", "%5, %15 ="): ["variadic reduction"],
    '"stablehlo.if"(%3) ({\n%5 = stablehlo.power %1, %1 : tensor<4xi32>\nstablehlo.return\n}, {\nstablehlo.return\n}) '
    ": (tensor<i1>) -> ()": ["conditional", "integer power"],
    SCATTER.replace("TYPE", "f32"): [],
    SCATTER.replace("TYPE", "i32"): ["integer scatter"],
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("body", CASES)
def test_rules(body: str) -> None:
    assert _C.neuron_refusals(program(body)) == CASES[body]


@needs_fake
@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_refused_before_the_compile(mode: str) -> None:
    """The error names the operator, the line and the reason, and what does not need it goes on."""
    from helpers import run_python

    done = run_python(
        """
        import torch, torch_tpu
        x = torch.ones(3, 4).to("tpu")
        try:
            y = torch.linalg.eigvalsh(x[:, :3])  # line 5
            z = x + 1
            print(z.cpu().shape)
            y.cpu()
        except NotImplementedError as error:
            print(error)
        print((x + 2).cpu().shape)
        """,
        TORCH_TPU_PJRT_PLUGIN=str(row_programs.FAKE),
        TORCH_TPU_CACHE="0",
        TORCH_TPU_EAGER_MODE=mode,
        FAKE_PJRT_ZEROS="1",
        FAKE_PJRT_PLATFORM="neuron",
    )
    lines = done.stdout.splitlines()
    error = next(line for line in lines if "Neuron" in line)
    assert "_linalg_eigh at <string>:5: the Neuron compiler does not take" in error and "data-dependent loop" in error
    assert lines.count("torch.Size([3, 4])") == (1 if mode == "strict" else 2)


@needs_fake
@pytest.mark.parametrize(
    "dtype",
    [d if d == "float32" else pytest.param(d, marks=pytest.mark.slow) for d in neuron_table.DTYPES],
)
def test_table_is_up_to_date(dtype: str, tmp_path: pathlib.Path) -> None:
    """Both ways: rows that are refused and not listed, and rows that are listed and pass."""
    listed = json.loads((ROOT / "docs" / "operators.json").read_text())["neuron"][dtype]
    calls = row_programs.emit(tmp_path, dtype)
    assert neuron_table.refusals(tmp_path, calls["rows"]) == listed, "run tools/measure_operators.py"
