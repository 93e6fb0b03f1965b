"""Plugins that fail: each entry of the C API, at once or late, in the middle of a queue, after a donated input.

The fake plugin of the C++ tests misbehaves on demand (tests/fake_pjrt/control.h); every case is a process of its own.
"""

from __future__ import annotations

import pathlib
import subprocess

import pytest
from conftest import ROOT
from helpers import run_python

FAKE = ROOT / "build" / "lib" / "libfake_pjrt.so"
pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="the fake plugin is built with the C++ tests: make test-cpp")

# The fake plugin's programs give back their inputs.
USE = """
    import torch
    x = torch.tensor([1.0, 2.0]).to("tpu")
    print((x + x).cpu().tolist())
    """
WORKS = "[1.0, 2.0]\n"
INJECTED = "injected by a test"


def run_fake(source: str, *, expect: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        source,
        expect=expect,
        timeout=120,
        **{"TORCH_TPU_PJRT_PLUGIN": str(FAKE), "TORCH_TPU_CACHE": "0"} | environment,
    )


def test_the_fake_plugin_works() -> None:
    assert run_fake(USE).stdout == WORKS
    assert run_fake(USE, FAKE_PJRT_OFF_HOST="1").stdout == WORKS


NEEDED = (
    "PJRT_Plugin_Initialize",
    "PJRT_Plugin_Attributes",
    "PJRT_Client_Create",
    "PJRT_Client_PlatformName",
    "PJRT_Client_AddressableDevices",
    "PJRT_Device_GetDescription",
    "PJRT_DeviceDescription_Id",
    "PJRT_DeviceDescription_Kind",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_Client_Compile",
    "PJRT_LoadedExecutable_GetExecutable",
    "PJRT_Executable_NumOutputs",
    "PJRT_LoadedExecutable_Execute",
    "PJRT_Event_Await",
    "PJRT_Buffer_ToHostBuffer",
)
# What is only for people, only saves time, or only gives memory back.
OPTIONAL = (
    "PJRT_Client_PlatformVersion",
    "PJRT_Client_Destroy",
    "PJRT_Device_LocalHardwareId",
    "PJRT_DeviceDescription_DebugString",
    "PJRT_DeviceDescription_Attributes",
    "PJRT_Buffer_Destroy",
    "PJRT_Event_Destroy",
    "PJRT_Executable_Destroy",
    "PJRT_Executable_Serialize",
    "PJRT_LoadedExecutable_Destroy",
    "PJRT_Executable_SizeOfGeneratedCodeInBytes",
)


@pytest.mark.parametrize("entry", NEEDED)
def test_failing_entry_is_a_python_error_with_its_text(entry: str) -> None:
    done = run_fake(USE, expect=1, FAKE_PJRT_OFF_HOST="1", FAKE_PJRT_FAIL=f"{entry}=13:{INJECTED}")
    assert "RuntimeError" in done.stderr and INJECTED in done.stderr, done.stderr


@pytest.mark.parametrize(
    "shape, complaint",
    [
        ({"FAKE_PJRT_NULL": "1"}, "returned nothing"),
        ({"FAKE_PJRT_MAJOR": "1"}, "C API 1."),
        ({"FAKE_PJRT_MINOR": "1"}, "C API 0.1"),
        ({"FAKE_PJRT_STRUCT_SIZE": "64"}, "PJRT_Plugin_Initialize"),
        ({"FAKE_PJRT_MISSING": "PJRT_LoadedExecutable_Execute"}, "PJRT_LoadedExecutable_Execute"),
    ],
    ids=["null", "major", "minor", "short", "missing"],
)
def test_plugin_of_the_wrong_shape(shape: dict[str, str], complaint: str) -> None:
    done = run_fake(USE, expect=1, **shape)
    assert "RuntimeError" in done.stderr and complaint in done.stderr and "pip install" in done.stderr, done.stderr


@pytest.mark.parametrize("entry", OPTIONAL)
def test_failing_entry_that_nothing_needs(entry: str, tmp_path: pathlib.Path) -> None:
    done = run_fake(
        USE, FAKE_PJRT_FAIL=f"{entry}=13:{INJECTED}", TORCH_TPU_CACHE="1", TORCH_TPU_CACHE_DIR=str(tmp_path)
    )
    assert done.stdout == WORKS


def test_entry_that_cannot_load_what_is_on_disk(tmp_path: pathlib.Path) -> None:
    source = (
        USE
        + """
    import torch_tpu
    stats = torch_tpu.compile_stats()
    print(int(stats["compiles"]), int(stats["disk_hits"]))
    """
    )
    cache = {"TORCH_TPU_CACHE": "1", "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    assert run_fake(source, **cache).stdout == WORKS + "1 0\n"
    assert run_fake(source, **cache).stdout == WORKS + "0 1\n"
    refusing = {"FAKE_PJRT_FAIL": f"PJRT_Executable_DeserializeAndLoad=13:{INJECTED}"}
    assert run_fake(source, **cache, **refusing).stdout == WORKS + "1 0\n"


@pytest.mark.parametrize("code, kind", [(8, "OutOfMemoryError"), (13, "RuntimeError"), (12, "NotImplementedError")])
def test_codes_become_exceptions(code: int, kind: str) -> None:
    """RESOURCE_EXHAUSTED, INTERNAL and UNIMPLEMENTED; the user's line is named. The device goes on working."""
    done = run_fake(
        """
        import torch
        x = torch.tensor([1.0, 2.0]).to("tpu")
        y = x + x  # line 4
        try:
            y.cpu()
        except Exception as error:
            print(type(error).__name__, "<string>:4" in str(error), "add" in str(error), error)
        print((x - x).cpu().tolist())
        """,
        FAKE_PJRT_FAIL_EXECUTION=f"1={code}:{INJECTED}",
    )
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{kind} True True ") and INJECTED in first, done.stdout
    assert second == "[1.0, 2.0]"


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_error_after_a_donated_input(mode: str) -> None:
    """The update took its input's memory and failed later: the tensor is lost, says so on every read and by everything
    made from it, and works again once it is overwritten."""
    done = run_fake(
        """
        import torch
        from torch_tpu import _C
        x = torch.tensor([1.0, 2.0]).to("tpu")
        other = torch.tensor([3.0, 4.0]).to("tpu")
        x.add_(other)
        torch.tpu.current_stream().query()
        for read in (x.cpu, lambda: (x + other).cpu(), lambda: (other + x).cpu(), x.cpu):
            try:
                read()
                print("no error")
            except RuntimeError as error:
                print("INJECTED" in str(error))
        print(_C._donation_stats()["donated"])
        x.copy_(other)
        print(x.cpu().tolist(), other.cpu().tolist())
        """.replace("INJECTED", INJECTED),
        TORCH_TPU_EAGER_MODE=mode,
        FAKE_PJRT_EVENT_MS="50",
        FAKE_PJRT_LATE_EXECUTION=f"1=13:{INJECTED}",
    )
    lines = done.stdout.splitlines()
    assert lines[0] == lines[3] == "True", done.stdout
    assert lines[4:] == ["1", "[3.0, 4.0] [3.0, 4.0]"]


def test_refused_launch_with_a_donated_input() -> None:
    """The plugin refuses an update of the only holder in a queue of several: the others still give their results."""
    done = run_fake(
        """
        import torch
        x = torch.tensor([1.0, 2.0]).to("tpu")
        other = torch.tensor([3.0, 4.0]).to("tpu")
        x.add_(other)
        y = other * other
        print(y.cpu().tolist(), x.cpu().tolist())
        """,
        TORCH_TPU_EAGER_MODE="fused",
        FAKE_PJRT_FAIL_EXECUTION=f"1=13:{INJECTED}",
    )
    assert done.stdout == "[3.0, 4.0] [1.0, 2.0]\n"


def test_failing_node_in_the_middle_of_a_queue() -> None:
    """One node of a fused program does not compile: it and what needs it raise, with its name and line."""
    done = run_fake(
        """
        import torch
        x = torch.tensor([1.0, 2.0]).to("tpu")
        a = x + x
        b = torch.tanh(a)  # line 5
        c = a * x
        d = c - b
        e = c - a
        for name in "abcde":
            try:
                print(name, globals()[name].cpu().tolist())
            except RuntimeError as error:
                print(name, "tanh at <string>:5" in str(error))
        """,
        TORCH_TPU_EAGER_MODE="fused",
        FAKE_PJRT_FAIL_PROGRAM="stablehlo.tanh",
    )
    values = "[1.0, 2.0]"
    assert done.stdout.splitlines() == [f"a {values}", "b True", f"c {values}", "d True", f"e {values}"]


def test_failing_node_in_the_middle_of_a_step() -> None:
    """The same in a function that is one program: a parameter is not lost for it."""
    done = run_fake(
        """
        import torch, torch_tpu
        x, y = torch.tensor([1.0, 2.0]).to("tpu"), torch.tensor([3.0, 4.0]).to("tpu")
        def step():
            x.add_(y)
            y.copy_(torch.tanh(x))  # line 6
            return x * 2
        z = torch_tpu.compile.step(step)()
        for name in "xyz":
            try:
                print(name, globals()[name].cpu().tolist())
            except RuntimeError as error:
                print(name, "tanh at <string>:6" in str(error))
        """,
        FAKE_PJRT_FAIL_PROGRAM="stablehlo.tanh",
    )
    assert done.stdout.splitlines() == ["x [1.0, 2.0]", "y True", "z [1.0, 2.0]"]


def test_refused_launch_of_a_step() -> None:
    """The plugin refuses the program: parts of it are done one after the other, and nothing is lost."""
    done = run_fake(
        """
        import torch, torch_tpu
        x, y = torch.tensor([1.0, 2.0]).to("tpu"), torch.tensor([3.0, 4.0]).to("tpu")
        def step():  # the fake plugin's programs have one result
            x.add_(y).mul_(2)
        step = torch_tpu.compile.step(step)
        for _ in range(2):
            step()
            print(x.cpu().tolist())
        """,
        FAKE_PJRT_FAIL_EXECUTION=f"1=13:{INJECTED}",
    )
    assert done.stdout == "[1.0, 2.0]\n[1.0, 2.0]\n"


@pytest.mark.parametrize("mode", ["strict", "fused", "debug"])
def test_dtype_that_the_compiler_refuses(mode: str) -> None:
    """The error names the operator, its dtypes, the user's line and what to do; other dtypes go on working."""
    done = run_fake(
        """
        import torch
        x = torch.ones(3, dtype=torch.float64).to("tpu")
        try:
            torch.tanh(x).cpu()  # line 5
        except RuntimeError as error:
            print(error)
        print(torch.tanh(x.to(torch.float32)).dtype)
        """,
        TORCH_TPU_EAGER_MODE=mode,
        FAKE_PJRT_ZEROS="1",
        FAKE_PJRT_FAIL_PROGRAM="-> (tensor<3xf64>)",
    )
    error, works = done.stdout.splitlines()
    for part in (
        "tanh at <string>:5 on float64[3]",
        "platform 'fake'",
        "the program holds",
        "torch.float32",
        "x.cpu()",
    ):
        assert part in error, error
    assert works == "torch.float32"


def test_creation_that_takes_too_long() -> None:
    """An error after the time-out, at once the second time, and a clean exit while the plugin still hangs."""
    done = run_fake(
        """
        import time, torch
        start = time.monotonic()
        for _ in range(2):
            try:
                torch.ones(1, device="tpu")
            except RuntimeError as error:
                print("TORCH_TPU_INIT_TIMEOUT" in str(error))
        print(time.monotonic() - start < 15)
        """,
        TORCH_TPU_INIT_TIMEOUT="1",
        FAKE_PJRT_CREATE_MS="30000",
    )
    assert done.stdout.splitlines() == ["True", "True", "True"]
