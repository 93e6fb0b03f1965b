"""The interpreter ends with its own status, in time, whatever the device is still doing."""

from __future__ import annotations

import pytest
from helpers import run_python


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize(
    "ending", ["", "sys.exit(3)", "raise KeyError('x')", "del x", "threading.Thread(target=f).start()"]
)
def test_exit_with_work_in_flight(mode: str, ending: str) -> None:
    """The interpreter ends with its own status, in time, whatever the device is still doing."""
    expect = {"sys.exit(3)": 3, "raise KeyError('x')": 1}.get(ending, 0)
    run_python(
        f"""
        import sys, threading, torch
        torch.tpu.set_eager_mode({mode!r})
        x = torch.ones(600, 600, device="tpu")
        def f():
            y = x
            for _ in range(20):
                y = y @ x / 600
        f()
        for _ in range(20):
            x = x @ x / 600
        y = x.requires_grad_()
        (y * 2).sum().backward()
        {ending}
        """,
        expect=expect,
        timeout=120,
    )


def test_exit_while_compiling() -> None:
    run_python(
        """
        import torch
        torch.tpu.set_eager_mode("fused")
        x = torch.ones(32, 32, device="tpu")
        for i in range(200):
            x = torch.tanh(x @ x) + i
        torch.tpu.set_eager_mode("strict")
        """,
        timeout=120,
        TORCH_TPU_CACHE="0",
    )


def test_tensors_that_outlive_everything() -> None:
    """Module globals, reference cycles and class attributes are destroyed late or never."""
    run_python("""
        import torch
        class Holder:
            tensor = torch.ones(3, device="tpu")
        a, b = Holder(), Holder()
        a.other, b.other = b, a
        a.x = torch.ones(3, device="tpu") * 2
        import builtins
        builtins.kept = [Holder.tensor + 1, torch.tpu.Stream(), torch.Event(device="tpu"),
                         torch.Generator(device="tpu")]
        """)
