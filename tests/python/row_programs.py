"""Makes the engine emit programs of every row of the lowering table, without compiling or running them.

    python tests/python/row_programs.py FOLDER DTYPE [--samples N] [--measure]

calls the entries of PyTorch's operator database with their first samples of a dtype, forward and backward, and what
typical_calls.py and row_calls.py have, one operator at a time. The programs land in FOLDER, each with comments that
name its rows. The plugin is the fake one of the C++ tests, whose results are zeros, so thousands of programs take
seconds. FOLDER/calls.json says what was refused and, with --measure, which operators PyTorch sent to the device, for
which dtypes, and how each was served.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import pathlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
FAKE = HERE.parents[1] / "build" / "lib" / "libfake_pjrt.so"
COMMENT = "// operators: "
# In the order of the type promotion of their kinds.
FLOATS = ("float32", "bfloat16", "float16", "float64")


def emit(folder: pathlib.Path, dtype: str, *, samples: int = 1, measure: bool = False) -> dict[str, Any]:
    """Runs this file in a new process and returns what is in calls.json."""
    command = [sys.executable, __file__, str(folder), dtype, "--samples", str(samples), *["--measure"] * measure]
    environment = os.environ | {
        "TORCH_TPU_PJRT_PLUGIN": str(FAKE),
        "FAKE_PJRT_ZEROS": "1",
        "TORCH_TPU_DUMP_DIR": str(folder),
        "TORCH_TPU_CACHE": "0",
        "TORCH_TPU_HOST_FALLBACK": "error",
        "TORCH_TPU_EAGER_MODE": "strict",
    }
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    calls: dict[str, Any] = json.loads((folder / "calls.json").read_text())
    return calls


def rows_of(program: pathlib.Path) -> list[list[str]]:
    """The combinations of rows that asked for a program; one row where one operator was called."""
    lines = program.read_text().splitlines()
    return [line.removeprefix(COMMENT).partition(" at ")[0].split() for line in lines if line.startswith(COMMENT)]


def programs_by_row(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Row -> programs that it alone emitted, longest text first; where there are none, those that it shares with
    others, shortest first."""
    alone: dict[str, list[pathlib.Path]] = collections.defaultdict(list)
    shared: dict[str, list[pathlib.Path]] = collections.defaultdict(list)
    for path in sorted(folder.glob("*.mlir"), key=lambda path: path.stat().st_size):
        for rows in rows_of(path):
            for row in rows:
                (alone if len(rows) == 1 else shared)[row].append(path)
    return {row: alone[row][::-1] or shared[row] for row in sorted({*alone, *shared})}


# ---- the child


class Refusals:
    """Runs calls and notes those that raise."""

    def __init__(self) -> None:
        self.by_call: dict[str, str] = {}

    def run(self, name: str, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:
            self.by_call[name] = f"{type(error).__name__}: {error}"[:400]


def _database_calls(dtype: Any, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    import torch
    from compare import tensors
    from entries import DEVICE, ENTRIES, FULL, dtypes, gradient_dtypes, place, samples

    def forward(op: Any, sample: Any) -> None:
        with torch.no_grad():
            x, args, kwargs = place(op, sample, DEVICE)
            with torch.device(DEVICE):
                op.get_op()(x, *args, **kwargs)

    def backward(op: Any, sample: Any) -> None:
        x, args, kwargs = place(op, sample, DEVICE)
        leaves = [v for v in tensors((x, args, kwargs)) if v.requires_grad]
        result = sample.output_process_fn_grad(op.get_op()(x, *args, **kwargs))
        outputs = [v for v in tensors(result) if v.requires_grad]
        if outputs and leaves:
            ones = [torch.ones(v.shape, dtype=v.dtype).to(DEVICE) for v in outputs]
            torch.autograd.grad(outputs, leaves, ones, allow_unused=True)

    for name, op in ENTRIES.items():
        for gradient, call in ((False, forward), (True, backward)):
            if dtype not in (gradient_dtypes(op) if gradient else dtypes(op)):
                continue
            for i, sample in itertools.islice(samples(op, dtype, FULL, gradient=gradient), count):
                yield f"{name} {call.__name__} #{i}", lambda call=call, op=op, sample=sample: call(op, sample)


def _further_calls(dtype: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    import row_calls
    import typical_calls

    for module in (row_calls, typical_calls):
        for name, function in module.CALLS.items():
            yield f"{module.__name__}.{name}", lambda function=function: function(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("dtype")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE / "op_db")]
    warnings.simplefilter("ignore")
    import torch
    import torch_tpu  # noqa: F401
    from served import Served

    dtype = getattr(torch, options.dtype)
    options.folder.mkdir(parents=True, exist_ok=True)
    refusals, served = Refusals(), Served()

    def run_all() -> None:
        for name, function in _database_calls(dtype, options.samples):
            torch.manual_seed(0)
            refusals.run(name, function)
        if options.dtype in FLOATS:
            for name, function in _further_calls(dtype):
                torch.manual_seed(0)
                refusals.run(name, function)
        torch.tpu.synchronize()

    run_all()
    rows = {row: [path.name for path in paths] for row, paths in programs_by_row(options.folder).items()}
    if options.measure:
        # Apart from the first run: where PyTorch sees a mode, some of its composites call other operators.
        with served:
            run_all()
    answer = {"refused": refusals.by_call, "rows": rows, "served": served.by_operator}
    (options.folder / "calls.json").write_text(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
