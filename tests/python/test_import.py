"""What `import torch` costs and does with this package installed, and how it behaves where something is wrong."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

# Bounds of the design: the package may add this much to `import torch`.
MAX_SECONDS = 0.3
MAX_MEGABYTES = 60


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter with more environment variables."""
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )


def output_of(code: str, **variables: str) -> str:
    """What the code printed; fails the test if it ended with an error."""
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_torch_registers_the_device() -> None:
    assert output_of("import torch; print(torch.device('tpu', 0), torch.tpu.__name__)") == "tpu:0 torch_tpu.device"


def test_import_starts_no_client_and_loads_no_plugin() -> None:
    code = """
import torch, torch_tpu._C
torch.manual_seed(3)
assert torch.tpu.is_available()
assert torch.accelerator.current_accelerator().type == "tpu"
plugin = torch_tpu._C.choose_plugin()[1]
print(torch.tpu.is_initialized(), torch.tpu._is_in_bad_fork(), plugin in open("/proc/self/maps").read())
"""
    assert output_of(code) == "False False False"


def test_import_does_not_import_dynamo() -> None:
    assert output_of("import sys, torch; print('torch._dynamo' in sys.modules)") == "False"


def test_import_cost() -> None:
    # Seconds and memory of the registration itself, in one interpreter: the spread of `import torch` is larger than
    # the bound. The best of three, since the machine may be busy.
    code = """
import json, resource, time, torch
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
memory, start = rss(), time.perf_counter()
import torch_tpu
from torch_tpu import _loader
assert _loader.is_loaded()
print(json.dumps({"seconds": time.perf_counter() - start, "megabytes": (rss() - memory) / 1e6}))
"""
    runs = [json.loads(output_of(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) for _ in range(3)]
    assert min(run["seconds"] for run in runs) < MAX_SECONDS, runs
    assert min(run["megabytes"] for run in runs) < MAX_MEGABYTES, runs


def test_torch_tpu_may_be_imported_first() -> None:
    assert output_of("import torch_tpu, torch; print(torch.tpu.is_available())") == "True"


def test_loader_is_idempotent_and_works_without_autoload() -> None:
    code = (
        "from torch_tpu import _loader; _loader.load(); _loader.load(); import torch; print(torch.ones(1).tpu().device)"
    )
    assert output_of(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "tpu:0"


def test_torch_device_cpu_registers_nothing() -> None:
    code = """
import torch, torch_tpu
print(torch.accelerator.current_accelerator(), hasattr(torch, "tpu"), torch_tpu.preferred_device())
"""
    assert output_of(code, TORCH_DEVICE="cpu") == "None False cpu"


@pytest.mark.parametrize(
    ("value", "message"),
    [("neuron", "'neuron' is not supported yet"), ("gpu", "TORCH_DEVICE is 'gpu'"), ("cpu:1", "is 'cpu:1'")],
)
def test_bad_torch_device_warns_and_leaves_torch_usable(value: str, message: str) -> None:
    done = python("import torch; print((torch.ones(2) + 1).tolist(), hasattr(torch, 'tpu'))", TORCH_DEVICE=value)
    assert done.returncode == 0
    assert done.stdout.strip() == "[2.0, 2.0] False"
    assert message in done.stderr


def test_another_backend_in_the_slot_is_named() -> None:
    code = """
import torch
torch.utils.rename_privateuse1_backend("other")
from torch_tpu import _loader
try:
    _loader.load()
except RuntimeError as error:
    print(error)
"""
    assert "already registered device 'other'" in output_of(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_torch_neuronx_says_that_it_is_not_supported() -> None:
    with pytest.raises(ImportError, match=r"not supported yet.*torch_tpu.*TORCH_DEVICE"):
        importlib.import_module("torch_neuronx")
    # Libraries probe it expecting RuntimeError.
    with pytest.raises(RuntimeError):
        importlib.import_module("torch_neuronx")


def test_dynamo_sees_this_device_and_not_the_one_built_into_torch() -> None:
    code = """
import torch
from torch._dynamo.device_interface import get_interface_for_device
interface = get_interface_for_device("tpu")
print(interface.is_dtype_supported(torch.float64), interface.Stream is torch.tpu.Stream, interface.device_count())
"""
    assert output_of(code) == "True True 1"


def test_preferred_device() -> None:
    assert output_of("import torch_tpu; print(torch_tpu.preferred_device())") == "tpu:0"
    assert output_of("import torch_tpu; print(torch_tpu.preferred_device())", TORCH_DEVICE="tpu:0") == "tpu:0"


def test_preferred_device_falls_back_with_a_warning() -> None:
    done = python("import torch_tpu; print(torch_tpu.preferred_device())", TORCH_TPU_PJRT_PLUGIN="/no/such/plugin.so")
    assert done.stdout.strip() == "cpu"
    assert "using the CPU" in done.stderr
    assert "/no/such/plugin.so" in done.stderr


def test_preferred_device_raises_where_the_device_was_asked_for() -> None:
    code = "import torch_tpu; torch_tpu.preferred_device()"
    done = python(code, TORCH_DEVICE="tpu", TORCH_TPU_PJRT_PLUGIN="/no/such/plugin.so")
    assert done.returncode != 0
    assert "RuntimeError: TORCH_DEVICE asks for device 'tpu', which does not work" in done.stderr
    done = python(code, TORCH_DEVICE="tpu:7")
    assert "there are 1, numbered from 0" in done.stderr


def test_use_in_a_forked_child_is_an_error_and_not_a_hang() -> None:
    code = """
import os, sys, torch
x = torch.ones(2, device="tpu")
torch.tpu.synchronize()
child = os.fork()
if child == 0:
    assert torch.tpu._is_in_bad_fork()
    assert torch.ones(2).sum().item() == 2
    try:
        torch.ones(2, device="tpu").cpu()
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (x + 1).cpu().tolist())
"""
    lines = output_of(code).splitlines()
    assert "fork" in lines[0]
    assert lines[-1] == "7 [2.0, 2.0]"


def test_fork_before_first_use_is_fine() -> None:
    code = """
import os, torch
child = os.fork()
if child == 0:
    os._exit(0 if torch.ones(2, device="tpu").sum().item() == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert output_of(code) == "0"
