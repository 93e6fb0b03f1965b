"""What the engine emits compiles for a TPU v5e: by libtpu's own compiler, which needs no TPU for it.

The calls run in one child process and the compiler in another one, each with a time limit (docs/pjrt.md).
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import typical_calls
from torch_tpu._internal import topology

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Files of csrc/lowering that hold no rows.
HELPERS = {
    "bounded",
    "helpers",
    "op_call",
    "table",
    "philox",
    "indexing_core",
    "linear_algebra_loop",
    "linear_algebra_matrix",
    "linear_algebra_jacobi",
    "linear_algebra_schur",
}

needs_libtpu = pytest.mark.skipif(
    not topology.libtpu_installed(), reason="libtpu is not installed: pip install -r requirements/test.txt"
)


def emit(folder: pathlib.Path, mode: str, dtype: str, calls: list[str]) -> dict[str, str]:
    """Runs the calls in a new process; file name of each program in `folder` -> the call it comes from."""
    folder.mkdir()
    command = [sys.executable, typical_calls.__file__, mode, dtype, *calls]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1200,
        # What the CPU plugin makes of the programs is not used, so it need not try hard.
        env=os.environ | {"TORCH_TPU_DUMP_DIR": str(folder), "XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )
    assert done.returncode == 0, done.stderr
    emitted: dict[str, str] = json.loads((folder / "calls.json").read_text())
    assert emitted.keys() == {path.name for path in folder.glob("*.mlir")}
    return emitted


def refusals(folder: pathlib.Path, seconds: float = 120) -> dict[str, str]:
    """File name -> the compiler's text, for the programs in `folder` that it does not take."""
    outcomes = topology.compile_programs(sorted(folder.glob("*.mlir")), "v5e:2x2", program_seconds=seconds)
    return {outcome.path.name: outcome.error for outcome in outcomes if outcome.error is not None}


def test_every_lowering_has_a_call() -> None:
    files = {path.stem for path in (ROOT / "csrc" / "lowering").glob("*.cpp")} - HELPERS
    missing = files - {typical_calls.file_of(name) for name in typical_calls.CALLS}
    assert not missing, f"typical_calls.py has nothing for {sorted(missing)}"


# Calls that `make test` leaves out, with the reason.
SLOW = {
    "elementwise_gamma": "half a minute: loops in float64, which a TPU emulates",
    "elementwise_implicit": "a minute, for the same reason",
    "elementwise__division_int64": "two seconds for one small operator",
    "model__recurrent": "one long program; the operators are met elsewhere",
}


# Each call in fused mode is a program or a few; in strict mode it is one for each operator, so `make test` takes every
# fifth call.
@needs_libtpu
@pytest.mark.parametrize(
    ("mode", "dtype", "stride"),
    [
        ("fused", "bfloat16", 1),
        ("strict", "float32", 5),
        pytest.param("strict", "float32", 1, marks=pytest.mark.slow),
        pytest.param("strict", "bfloat16", 1, marks=pytest.mark.slow),
        pytest.param("fused", "float32", 1, marks=pytest.mark.slow),
    ],
)
def test_typical_calls_compile_for_v5e(tmp_path: pathlib.Path, mode: str, dtype: str, stride: int) -> None:
    full = os.environ.get("TORCH_TPU_TEST_FULL") == "1"
    calls = [name for name in typical_calls.CALLS if full or name not in SLOW][::stride]
    emitted = emit(tmp_path / "programs", mode, dtype, calls)
    assert set(emitted.values()) == set(calls)  # or the engine wrote nothing, and nothing would be refused
    refused = refusals(tmp_path / "programs")
    assert not refused, "\n".join(f"{emitted[name]} ({name}): {error}" for name, error in refused.items())


# What the compiler of libtpu does not take from us, and why we do not emit it otherwise.
KNOWN_REFUSALS = {
    "convolution_int64": (
        "import torch; torch.conv1d(torch.ones(1, 1, 8, dtype=torch.int64, device='tpu'), "
        "torch.ones(1, 1, 3, dtype=torch.int64, device='tpu'))",
        "s64",  # no 64-bit integer convolution on TPUs; nobody trains with one
    ),
}


@needs_libtpu
def test_refusals_are_named_and_the_rest_goes_on(tmp_path: pathlib.Path) -> None:
    """Programs that are refused are reported with the compiler's text, and those after them are compiled."""
    for name, (source, _) in KNOWN_REFUSALS.items():
        environment = os.environ | {"TORCH_TPU_DUMP_DIR": str(tmp_path / name), "TORCH_TPU_EAGER_MODE": "fused"}
        subprocess.run(
            [sys.executable, "-c", f"{source}.cpu()"], check=True, timeout=180, env=environment, capture_output=True
        )
        (program,) = (tmp_path / name).glob("*.mlir")
        program.rename(tmp_path / f"{name}.mlir")
    (tmp_path / "a_broken.mlir").write_text("module { this is no program }")
    (tmp_path / "z_good.mlir").write_text(
        "module { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> } }"
    )
    refused = refusals(tmp_path)
    assert refused.keys() == {"a_broken.mlir", *(f"{name}.mlir" for name in KNOWN_REFUSALS)}
    for name, (_, message) in KNOWN_REFUSALS.items():
        assert message in refused[f"{name}.mlir"]


@needs_libtpu
def test_unknown_topology_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "any.mlir").write_text("")
    with pytest.raises(RuntimeError, match="did not start"):
        list(topology.compile_programs([tmp_path / "any.mlir"], "v99:1x1"))


@needs_libtpu
@pytest.mark.slow
def test_endless_compile_is_cut_off(tmp_path: pathlib.Path) -> None:
    """A 64-bit integer division takes the compiler over a second of work, so a hundred are as good as a hang."""
    size = "tensor<5xi64>"
    lines = [f"%r{i + 1} = stablehlo.divide %r{i}, %x : {size}" for i in range(100)]
    body = "\n".join([*lines, f"return %r100 : {size}"])
    slow, good = tmp_path / "slow.mlir", tmp_path / "good.mlir"
    slow.write_text(f"module {{ func.func public @main(%x: {size}, %r0: {size}) -> {size} {{ {body} }} }}")
    good.write_text(f"module {{ func.func public @main(%x: {size}) -> {size} {{ return %x : {size} }} }}")
    first, second = topology.compile_programs([slow, good], program_seconds=10)
    assert first.error is not None and "no answer" in first.error and first.seconds < 60
    assert second.error is None
