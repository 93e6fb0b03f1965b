"""What the capability tests share: the device's name, modes, child processes, comparison with the CPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

DEVICE = "tpu"
MODES = ("debug", "strict", "fused")


@contextlib.contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """Runs a block in one execution mode."""
    before = torch.tpu.get_eager_mode()
    torch.tpu.set_eager_mode(mode)
    try:
        yield
    finally:
        torch.tpu.set_eager_mode(before)


@pytest.fixture(params=("strict", "fused"))
def each_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Repeats a test in both asynchronous modes."""
    with eager_mode(request.param):
        yield request.param


@pytest.fixture(params=MODES)
def every_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with eager_mode(request.param):
        yield request.param


def to_device(x: Any, device: str | None = None) -> Any:
    """Copies of the tensors in nested tuples, lists and dicts, by default on the device under test."""
    device = device or DEVICE
    if isinstance(x, torch.Tensor):
        return x.detach().to(device, copy=True).requires_grad_(x.requires_grad)
    if isinstance(x, (list, tuple)):
        return type(x)(to_device(v, device) for v in x)
    if isinstance(x, dict):
        return {k: to_device(v, device) for k, v in x.items()}
    return x


def assert_matches(got: Any, want: Any, *, strides: bool = False, **tolerance: float) -> None:
    """`got`, from the device, equals `want`, from the CPU, at PyTorch's default tolerances unless given others."""
    if isinstance(want, torch.Tensor):
        assert got.device.type == DEVICE, f"the result is on {got.device}"
        torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True, **tolerance)
        if strides:
            assert got.stride() == want.stride()
            assert got.storage_offset() == want.storage_offset()
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_matches(g, w, strides=strides, **tolerance)
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            assert_matches(got[key], want[key], strides=strides, **tolerance)
    else:
        assert got == want


def check(function: Callable[..., Any], *arguments: Any, strides: bool = False, **tolerance: float) -> Any:
    """Runs `function` on copies of the arguments on both devices, compares results and arguments afterwards."""
    on_cpu, on_device = to_device(list(arguments), "cpu"), to_device(list(arguments))
    want = function(*on_cpu)
    got = function(*on_device)
    assert_matches(got, want, strides=strides, **tolerance)
    assert_matches(on_device, on_cpu, **tolerance)
    return got


def run_python(
    source: str, *, expect: int | None = 0, timeout: float = 180, arguments: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `source` in a new interpreter with `environment` added; asserts its exit status unless None."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | environment,
    )
    if expect is not None:
        assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def start_python(source: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Like run_python, without waiting."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
