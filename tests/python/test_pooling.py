"""Max, average, adaptive and fractional pooling with indices and gradients, against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients import check_gradients, leaf
from helpers import DEVICE, check
from torch.nn import functional as F

MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVERAGE = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
SIZES = (11, 9, 8)

MAX_OPTIONS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "dilation": 2},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
)


@pytest.mark.parametrize("spatial", (1, 2, 3))
@pytest.mark.parametrize("options", MAX_OPTIONS)
def test_max(spatial: int, options: dict[str, Any]) -> None:
    x = leaf(2, 3, *SIZES[:spatial])
    check_gradients(lambda x: MAX[spatial - 1](x, return_indices=True, **options), x)
    check_gradients(lambda x: MAX[spatial - 1](x, **options), x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.uint8))
def test_ties_choose_the_first(dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (2, 3, 8, 8)).to(dtype)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    if dtype.is_floating_point:
        check(lambda x: F.adaptive_max_pool2d(x, (3, 5), return_indices=True), x)


def test_nan_and_infinity() -> None:
    x = torch.randn(2, 8, 8)
    x[0, 2, 3] = x[0, 3, 1] = x[1, 5, 5] = float("nan")
    x[1, :4] = -float("inf")
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)


def test_large_windows() -> None:
    """More taps than are written out one by one."""
    check_gradients(lambda x: F.max_pool2d(x, (3, 50), (2, 7), (1, 20), return_indices=True), leaf(2, 2, 7, 80))
    check_gradients(lambda x: F.avg_pool2d(x, (3, 50), (2, 7), (1, 20)), leaf(2, 2, 7, 80))
    check_gradients(lambda x: F.max_pool2d(x, 7, 3, 2), leaf(2, 2, 20, 20))


AVERAGE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": 3, "ceil_mode": True},
)


@pytest.mark.parametrize("spatial", (1, 2, 3))
@pytest.mark.parametrize("options", AVERAGE_OPTIONS)
def test_average(spatial: int, options: dict[str, Any]) -> None:
    check_gradients(lambda x: AVERAGE[spatial - 1](x, **options), leaf(2, 3, *SIZES[:spatial]))


def test_average_divisor() -> None:
    check_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), leaf(2, 3, 8, 9))
    check_gradients(lambda x: F.avg_pool3d(x, (2, 3, 1), 2, divisor_override=-2), leaf(3, 6, 8, 9))


@pytest.mark.parametrize(
    "sizes, out", [((8, 9), (4, 3)), ((8, 9), (3, 4)), ((5, 7), (8, 7)), ((8, 9), (1, 1)), ((3, 3), (6, 1))]
)
def test_adaptive(sizes: tuple[int, int], out: tuple[int, int]) -> None:
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, out), leaf(2, 3, *sizes))
    check_gradients(lambda x: F.adaptive_max_pool2d(x, out, return_indices=True), leaf(2, 3, *sizes))
    check_gradients(lambda x: F.adaptive_avg_pool3d(x, (2, *out)), leaf(2, 3, 5, *sizes))
    check_gradients(lambda x: F.adaptive_max_pool3d(x, (2, *out), return_indices=True), leaf(2, 3, 5, *sizes))
    check_gradients(lambda x: F.adaptive_avg_pool1d(x, out[0]), leaf(2, 3, sizes[0]))


def test_unpool() -> None:
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        y, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y, indices, 2, output_size=x.shape)

    check_gradients(there_and_back, leaf(2, 3, 7, 8))
    with pytest.raises(RuntimeError):
        bad = torch.full((1, 1, 2, 2), 99, device=DEVICE)
        F.max_unpool2d(torch.ones(1, 1, 2, 2, device=DEVICE), bad, 2).cpu()


def test_unpool_keeps_channels_last() -> None:
    x = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    got, want = F.max_unpool2d(y.to(DEVICE), indices.to(DEVICE), 2), F.max_unpool2d(y, indices, 2)
    assert got.stride() == want.stride()
    assert torch.equal(got.cpu(), want)


def test_fractional() -> None:
    samples = torch.rand(2, 3, 2, dtype=torch.float64)
    check_gradients(
        lambda x, s: F.fractional_max_pool2d(x, (3, 2), (4, 5), return_indices=True, _random_samples=s),
        leaf(2, 3, 9, 11),
        samples,
    )
    samples = torch.rand(2, 3, 3)
    check(
        lambda x, s: F.fractional_max_pool3d(x, 2, (3, 4, 1), return_indices=True, _random_samples=s),
        torch.randn(2, 3, 7, 8, 6),
        samples,
    )


def test_layouts_and_edges() -> None:
    x = leaf(2, 4, 8, 6)
    check_gradients(lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2), x)
    check_gradients(lambda x: F.avg_pool2d(x.transpose(2, 3)[:, 1:], 3, 2), x)
    check(lambda x: F.max_pool2d(x, 2), torch.randn(0, 3, 4, 4))
    check(lambda x: F.avg_pool2d(x, 2), torch.randn(0, 3, 4, 4))
    check(lambda x: F.adaptive_avg_pool2d(x, 2), torch.randn(0, 3, 4, 4))
    with pytest.raises(RuntimeError):
        F.max_pool2d(torch.randn(1, 1, 2, 2, device=DEVICE), 5)
