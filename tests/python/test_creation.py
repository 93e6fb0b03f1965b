"""Filling and factories against the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import DEVICE, assert_matches, check
from torch import Tensor

REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
ALL = (*REAL, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("value", [0, 1, 2.5, True, -1], ids=str)
def test_full_and_fill(value: float, dtype: torch.dtype) -> None:
    if value == -1 and dtype == torch.uint8:
        value = 255  # PyTorch refuses a negative fill of unsigned types
    for sizes in ((2, 3), (), (0, 4)):
        assert_matches(torch.full(sizes, value, dtype=dtype, device=DEVICE), torch.full(sizes, value, dtype=dtype))
        check(lambda x: x.fill_(value), torch.ones(sizes, dtype=dtype))
        check(lambda x: x.fill_(torch.tensor(value, device=x.device)), torch.ones(sizes, dtype=dtype))
        check(lambda x: torch.full_like(x, value), torch.ones(sizes, dtype=dtype))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_zeros_and_ones(dtype: torch.dtype) -> None:
    for make in (torch.zeros, torch.ones):
        assert_matches(make(3, 2, dtype=dtype, device=DEVICE), make(3, 2, dtype=dtype))
    check(lambda x: torch.zeros_like(x), torch.ones(2, 3, dtype=dtype))
    check(lambda x: x[1:].zero_(), torch.ones(3, 2, dtype=dtype))
    check(lambda x: x.new_zeros(4), torch.ones(2, 3, dtype=dtype))


def test_fill_keeps_the_rest_of_the_storage() -> None:
    check(lambda x: x[:, 1].fill_(9), torch.zeros(3, 4))
    check(lambda x: x.t()[2].fill_(math.inf), torch.zeros(3, 4))


def test_filling_with_many_values() -> None:
    """The value becomes an operand when it keeps changing."""
    x, y = torch.zeros(3, device=DEVICE), torch.zeros(3)
    for i in range(8):
        x.fill_(i / 3)
        y.fill_(i / 3)
        assert_matches(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_masked_fill(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype)
    mask = torch.arange(12).reshape(3, 4) % 3 == 0
    check(lambda a, m: a.masked_fill(m, 1), x, mask)
    check(lambda a, m: a.masked_fill_(m, 1), x, mask)
    check(lambda a, m: a.masked_fill(m[:, :1], 0), x, mask)
    check(lambda a, m: a[0].masked_fill(m, 0), x, mask)
    check(lambda a, m: a.masked_fill(m, torch.tensor(1, dtype=dtype, device=a.device)), x, mask)
    check(lambda a, m: a.t().masked_fill_(m.t(), 1), x, mask)


def test_masked_fill_with_gradient() -> None:
    def gradients(x: Tensor, mask: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.masked_fill(mask, -math.inf).softmax(-1).square().sum(), x)[0]

    check(gradients, torch.arange(12.0).reshape(3, 4), torch.arange(12).reshape(3, 4) % 3 == 0)


RANGES = [(0, 5, 1), (2, 11, 3), (5, -4, -2), (0.5, 4.0, 0.25), (1, 1, 1), (-3.7, 9.1, 1.3), (0, 10, 0.1)]


@pytest.mark.parametrize("dtype", [None, *REAL], ids=str)
@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_arange(bounds: tuple[float, float, float], dtype: torch.dtype | None) -> None:
    if dtype is not None and not dtype.is_floating_point and any(b != int(b) for b in bounds):
        bounds = (0, 7, 2)
    if dtype == torch.uint8 and min(bounds) < 0:
        bounds = (3, 200, 5)
    assert_matches(torch.arange(*bounds, dtype=dtype, device=DEVICE), torch.arange(*bounds, dtype=dtype))


def test_long_aranges_stay_exact() -> None:
    for bounds in ((2**24 - 3, 2**24 + 5, 1), (2**40, 2**40 + 10, 1), (-(2**61), 2**61, 2**60), (0, 3000, 0.1)):
        assert_matches(torch.arange(*bounds, device=DEVICE), torch.arange(*bounds))


def test_arange_of_one_length_with_many_bounds() -> None:
    for start in range(6):
        assert_matches(torch.arange(start, start + 4, device=DEVICE), torch.arange(start, start + 4))


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize(
    "bounds", [(0, 10, 11), (0, 3, 10), (3, -7, 23), (-2.5, 4.5, 8), (5, 9, 1), (1, 2, 0)], ids=str
)
def test_linspace(bounds: tuple[float, float, int], dtype: torch.dtype) -> None:
    start, end, steps = bounds
    if dtype == torch.uint8:
        start, end = abs(start), abs(end)
    # The CPU rounds the step to the half type; next to zero its results are off by three units in the last place.
    half = dtype in (torch.bfloat16, torch.float16)
    want = torch.linspace(start, end, steps, dtype=torch.float64 if half else dtype).to(dtype)
    assert_matches(torch.linspace(start, end, steps, dtype=dtype, device=DEVICE), want)


def test_linspace_of_integers_falls_short_of_whole_numbers_as_on_the_cpu() -> None:
    # The exact sums of these starts and rounded steps are just below a whole number, at some place of each.
    for bounds in ((71, -33, 13), (33, -21, 64), (-9, 37, 69), (-10, 14, 16), (-43, 85, 53)):
        got, want = (torch.linspace(*bounds, dtype=torch.int64, device=device) for device in (DEVICE, "cpu"))
        assert torch.equal(got.cpu(), want), bounds


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex128])
def test_bounds_that_change_keep_their_digits(dtype: torch.dtype) -> None:
    # After some values of a bound, programs take it as an argument.
    for i in range(8):
        bounds = 2.0**40 + 4.1 * i, 2.0**41 + 3.3 * i
        got, want = (torch.linspace(*bounds, 3, dtype=dtype, device=device) for device in (DEVICE, "cpu"))
        torch.testing.assert_close(got.cpu(), want, rtol=1e-15, atol=0)


def test_linspace_of_integers_whose_bounds_change_has_exact_steps() -> None:
    # A product with 1 / 49 instead of the division by 49 makes a step of -0.99999...
    for i in range(8):
        got, want = (torch.linspace(50 + i, 1 + i, 50, dtype=torch.int64, device=device) for device in (DEVICE, "cpu"))
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("base", [10.0, 2.0, 0.5])
def test_logspace(base: float) -> None:
    for dtype in (torch.float32, torch.float64):
        want = torch.logspace(-2, 3, 12, base, dtype=dtype)
        assert_matches(torch.logspace(-2, 3, 12, base, dtype=dtype, device=DEVICE), want)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("sizes", [(3,), (2, 5), (5, 2), (0,), (0, 3)], ids=str)
def test_eye(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    assert_matches(torch.eye(*sizes, dtype=dtype, device=DEVICE), torch.eye(*sizes, dtype=dtype))


def test_windows() -> None:
    for window in (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window):
        assert_matches(window(9, device=DEVICE), window(9))
