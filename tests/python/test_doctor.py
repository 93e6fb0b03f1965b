"""`python -m torch_tpu doctor`, and plugins that are no good: always one clear error, never an abort or a hang."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

ABORTING = """
#include <cstdlib>
__attribute__((constructor)) static void end() { std::abort(); }
"""
HANGING = """
#include <unistd.h>
extern "C" const void* GetPjrtApi() { for (;;) pause(); }
"""


def doctor(timeout: float | None = None, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON report."""
    command = [sys.executable, "-m", "torch_tpu", "doctor", "--json"]
    if timeout is not None:
        command += ["--timeout", str(timeout)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout)


def build_library(folder: pathlib.Path, source: str) -> pathlib.Path:
    """Compiles a shared library; skips where there is no compiler."""
    compiler = shutil.which("clang++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    (folder / "plugin.cpp").write_text(source)
    library = folder / "plugin.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "plugin.cpp"), "-o", str(library)], check=True)
    return library


def hostile(kind: str, folder: pathlib.Path) -> pathlib.Path:
    """A plugin path of the kind that a test asks for."""
    if kind == "missing":
        return folder / "missing.so"
    if kind == "text":
        path = folder / "text.so"
        path.write_text("this is no library\n")
        return path
    if kind == "no entry":
        return build_library(folder, 'extern "C" int unrelated() { return 1; }\n')
    if kind == "null":
        return build_library(folder, 'extern "C" const void* GetPjrtApi() { return nullptr; }\n')
    return build_library(folder, {"aborting": ABORTING, "hanging": HANGING}[kind])


def test_healthy() -> None:
    status, report = doctor()
    assert report["problems"] == []
    assert status == 0
    assert report["healthy"] is True
    facts = report["facts"]
    assert facts["plugin"]["device 0"].endswith(", healthy")
    assert facts["torch"]["matmul on tpu"] == "right"
    assert facts["torch"]["device 'tpu' registered"] == "yes"
    assert facts["compile cache"]["folder"] == os.environ["TORCH_TPU_CACHE_DIR"]
    assert {"torch", "python"} <= facts["versions"].keys()
    assert facts["environment"]["TORCH_TPU_HOST_FALLBACK"] == os.environ["TORCH_TPU_HOST_FALLBACK"]


def test_report_for_people() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", "doctor"], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.rstrip().endswith("healthy")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "not a file"),
        ("text", "cannot use the PJRT plugin"),
        ("no entry", "GetPjrtApi"),
        ("null", "GetPjrtApi"),
        ("aborting", "ended its process (signal 6)"),
        ("hanging", "did not answer within"),
    ],
)
def test_hostile_plugin_is_reported(kind: str, words: str, tmp_path: pathlib.Path) -> None:
    path = hostile(kind, tmp_path)
    status, report = doctor(timeout=20, TORCH_TPU_PJRT_PLUGIN=str(path))
    assert status == 1
    plugin_problems = [p for p in report["problems"] if "the plugin does not work" in p["problem"]]
    assert len(plugin_problems) == 1
    assert words in plugin_problems[0]["problem"]
    assert "TORCH_TPU_PJRT_PLUGIN" in plugin_problems[0]["remedy"]


@pytest.mark.parametrize("kind", ["missing", "text", "no entry", "null"])
def test_hostile_plugin_raises_in_python(kind: str, tmp_path: pathlib.Path) -> None:
    path = hostile(kind, tmp_path)
    code = """
import torch
for _ in range(2):
    try:
        torch.ones(2, device="tpu").cpu()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print((torch.ones(2) + 1).tolist())
"""
    environment = {**os.environ, "TORCH_TPU_PJRT_PLUGIN": str(path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert str(path) in lines[0]
    assert lines[0] == lines[1]
    assert lines[2] == "[2.0, 2.0]"


def test_unknown_provider_is_reported() -> None:
    status, report = doctor(TORCH_TPU_PJRT_PLUGIN="nonsense")
    assert status == 1
    assert "lammps-jax-pjrt-cpu" in report["problems"][0]["problem"]


def test_bad_xla_flags_are_reported() -> None:
    status, report = doctor(XLA_FLAGS="--no_such_flag=1")
    assert status == 1
    assert "no_such_flag" in report["problems"][0]["problem"]
    assert "XLA_FLAGS" in report["problems"][0]["remedy"]


def test_bad_xla_flags_raise_in_python() -> None:
    code = "import torch; torch.ones(2, device='tpu').cpu()"
    environment = {**os.environ, "XLA_FLAGS": "--no_such_flag=1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "no_such_flag" in done.stderr.splitlines()[-1]


def test_torch_device_is_reported() -> None:
    status, report = doctor(TORCH_DEVICE="neuron")
    assert status == 1
    assert any("not supported yet" in p["problem"] for p in report["problems"])
    status, report = doctor(TORCH_DEVICE="gpu")
    assert status == 1
    assert any("TORCH_DEVICE is 'gpu'" in p["problem"] for p in report["problems"])


def test_no_plugin_at_all_names_the_command(tmp_path: pathlib.Path) -> None:
    # tpu_probe without any folder to look in stands for a machine where nothing is installed.
    import torch_tpu

    program = pathlib.Path(torch_tpu.__file__).with_name("tpu_probe")
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_TPU_PJRT_PLUGIN"}
    done = subprocess.run([str(program), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install" in done.stdout


def test_cache_folder_that_cannot_be_written(tmp_path: pathlib.Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    status, report = doctor(TORCH_TPU_CACHE_DIR=str(blocked / "cache"))
    assert status == 1
    assert any("cannot be written" in p["problem"] for p in report["problems"])


def test_cache_turned_off() -> None:
    status, report = doctor(TORCH_TPU_CACHE="0")
    assert status == 0
    assert report["facts"]["compile cache"]["folder"].startswith("off")
