"""Errors of settings, plugins and operators without a kernel: exceptions that say what to do, each in a new process."""

from __future__ import annotations

import pytest
import torch
from helpers import run_python


def test_message_of_an_unsupported_operator_says_what_to_do() -> None:
    """With the fallback forbidden, an operator without a kernel names itself."""
    script = """
        import torch
        try:
            torch.linalg.eig(torch.eye(2, device="tpu"))
        except (RuntimeError, NotImplementedError) as error:
            print(error)
        print(torch.ones(2, device="tpu").sum().item())
        """
    done = run_python(script, TORCH_TPU_HOST_FALLBACK="error")
    assert done.stdout.endswith("2.0\n")
    if done.stdout != "2.0\n":  # else it is supported by now
        assert "linalg_eig" in done.stdout and "TORCH_TPU_HOST_FALLBACK" in done.stdout


def test_unknown_mode_and_setting() -> None:
    with pytest.raises(ValueError, match="strict"):
        torch.tpu.set_eager_mode("lazy")
    done = run_python("import torch; torch.ones(1, device='tpu')", expect=None, TORCH_TPU_EAGER_MODE="lazy")
    assert done.returncode == 1 and "TORCH_TPU_EAGER_MODE" in done.stderr + done.stdout


@pytest.mark.parametrize("plugin", ["/nonexistent/plugin.so", "__file__"])
def test_broken_plugin_is_a_python_error(plugin: str) -> None:
    """A path that is missing or not a plugin: no abort, no hang, and a message that says what to install."""
    done = run_python(
        "import torch; torch.ones(1, device='tpu')",
        expect=None,
        timeout=90,
        TORCH_TPU_PJRT_PLUGIN=__file__ if plugin == "__file__" else plugin,
    )
    assert done.returncode == 1, done.stderr
    assert "RuntimeError" in done.stderr and ("install" in done.stderr or "TORCH_TPU_PJRT_PLUGIN" in done.stderr)


def test_bad_xla_flags_are_a_python_error() -> None:
    """XLA ends the process over an unknown flag; we find out in a child first."""
    done = run_python(
        "import torch; torch.ones(1, device='tpu')", expect=None, timeout=90, XLA_FLAGS="--xla_no_such_flag=true"
    )
    assert done.returncode == 1, f"{done.returncode} {done.stderr}"
    assert "XLA_FLAGS" in done.stderr or "xla_no_such_flag" in done.stderr
