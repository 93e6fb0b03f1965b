"""Errors of settings, plugins and operators without a kernel: exceptions that say what to do, each in a new process."""

from __future__ import annotations

import pathlib

import pytest
import torch
import torch_tpu
from helpers import run_python


def test_message_of_an_unsupported_operator_says_what_to_do() -> None:
    """With the fallback forbidden, an operator without a kernel names itself."""
    script = """
        import torch
        try:
            torch._test_functorch_fallback(torch.ones(2, device="tpu"), torch.ones(2))
        except (RuntimeError, NotImplementedError) as error:
            print(error)
        print(torch.ones(2, device="tpu").sum().item())
        """
    done = run_python(script, TORCH_TPU_HOST_FALLBACK="error")
    assert done.stdout.endswith("2.0\n")
    assert "_test_functorch_fallback" in done.stdout and "TORCH_TPU_HOST_FALLBACK" in done.stdout


def test_unknown_mode_and_setting() -> None:
    with pytest.raises(ValueError, match="strict"):
        torch.tpu.set_eager_mode("lazy")
    done = run_python("import torch; torch.ones(1, device='tpu')", expect=None, TORCH_TPU_EAGER_MODE="lazy")
    assert done.returncode == 1 and "TORCH_TPU_EAGER_MODE" in done.stderr + done.stdout


LIBRARY = pathlib.Path(torch_tpu.__file__).with_name("libtpu_core.so")


@pytest.mark.parametrize(
    "plugin, complaint",
    [
        ("/nonexistent/plugin.so", "not a file"),
        ("/", "not a file"),
        (__file__, "invalid ELF header"),
        (str(LIBRARY), "does not export GetPjrtApi"),
        ("no-such-name", "known: "),
    ],
    ids=["missing", "folder", "text", "library", "name"],
)
def test_broken_plugin_is_a_python_error(plugin: str, complaint: str) -> None:
    """A path that is missing or not a plugin: no abort, no hang, and a message that says what is wrong and what to do.
    The process goes on, and says the same again."""
    done = run_python(
        """
        import torch
        for _ in range(2):
            try:
                torch.ones(1, device="tpu")
            except (RuntimeError, ValueError) as error:
                print(error)
        print(torch.ones(1).item())
        """,
        timeout=90,
        TORCH_TPU_PJRT_PLUGIN=plugin,
    )
    first, second, last = done.stdout.splitlines()
    assert first == second and complaint in first and last == "1.0", done.stdout
    assert "install" in first or "TORCH_TPU_PJRT_PLUGIN" in first or "known: " in first


@pytest.mark.parametrize("flag", ["--xla_no_such_flag=true", "--xla_cpu_enable_fast_math=banana"])
def test_bad_xla_flags_are_a_python_error(flag: str, tmp_path: pathlib.Path) -> None:
    """XLA ends the process over a flag that it does not know; we find out in a child first."""
    for _ in range(2):  # the second time from the verdict on disk
        done = run_python(
            "import torch; torch.ones(1, device='tpu')",
            expect=1,
            timeout=90,
            XLA_FLAGS=flag,
            TORCH_TPU_CACHE_DIR=str(tmp_path),
        )
        assert "ValueError" in done.stderr and "XLA_FLAGS" in done.stderr, done.stderr
        assert flag.removeprefix("--").partition("=")[0] in done.stderr
