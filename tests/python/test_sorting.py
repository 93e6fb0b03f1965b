"""Sorting, top-k, order statistics, searching and histograms against the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import DEVICE, check, to_device
from torch import Tensor

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SPECIAL = [
    [1.0, NAN, 3.0, -2.0, 3.0, INF, -INF, NAN],
    [0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 0.0, -0.0],
    [-INF, -1.5, -1.5, INF, NAN, INF, -INF, 0.0],
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def values(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Few distinct values, so that ties are common."""
    if dtype == torch.bool:
        return torch.rand(sizes) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -20, 21, sizes, dtype=dtype)
    return torch.randint(-20, 21, sizes).to(dtype) / 4


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_sort_is_stable(dtype: torch.dtype, descending: bool) -> None:
    check(lambda x: torch.sort(x, dim=1, stable=True, descending=descending), values((3, 40, 2), dtype))
    check(lambda x: torch.sort(x.t(), dim=-1, stable=True, descending=descending), values((40, 3), dtype))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sort_of_special_values(dtype: torch.dtype, descending: bool) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    got = check(lambda x: torch.sort(x, dim=1, stable=True, descending=descending), x)
    want = torch.sort(x, dim=1, stable=True, descending=descending)
    signs = torch.signbit(got[0].cpu()) == torch.signbit(want[0])
    assert bool((signs | want[0].isnan()).all()), "a zero lost its sign"


def test_ends_of_the_integer_ranges() -> None:
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        info = torch.iinfo(dtype)
        x = torch.tensor([0, info.max, info.min, 1, info.max, info.min, info.max - 1], dtype=dtype)
        check(lambda x: torch.sort(x, stable=True), x)
        check(lambda x: torch.sort(x, stable=True, descending=True), x)


def test_sort_forms() -> None:
    x = torch.randn(3, 5)
    check(torch.sort, x)
    check(lambda x: torch.argsort(x, dim=0, descending=True), x)
    check(torch.msort, x)
    check(torch.sort, torch.tensor(2.0))
    check(torch.sort, torch.empty(0, 3))
    check(torch.sort, torch.empty(3, 0))
    check(lambda x, v, i: torch.sort(x, out=(v, i)), x, torch.empty(0), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int32, torch.uint8), ids=str)
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    # Which of several equal elements is taken is not defined, so the values count and what the indices point to.
    inputs = [values((3, 40), dtype), torch.tensor(SPECIAL).nan_to_num(7, 9, -9).to(dtype) if dtype.is_signed else None]
    if dtype.is_floating_point:
        inputs.append(torch.tensor(SPECIAL, dtype=dtype))
    for x in inputs:
        if x is None:
            continue
        for k in (1, 3, x.shape[1]):
            got, indices = to_device(x).topk(k, 1, largest)
            torch.testing.assert_close(got.cpu(), x.topk(k, 1, largest)[0], equal_nan=True)
            torch.testing.assert_close(x.gather(1, indices.cpu()), got.cpu(), equal_nan=True)


def test_topk_forms() -> None:
    x = torch.randn(6, 5, 4)
    check(lambda x: x.topk(2, 0), x)
    check(lambda x: x.topk(3, 1, sorted=True), x)
    check(lambda x: x.topk(0, 1), x)
    check(lambda x: x.topk(1), torch.tensor(3.0))
    check(lambda x: x.topk(2), torch.empty(0, 5))
    with pytest.raises(RuntimeError, match="out of range"):
        to_device(x).topk(7, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_order_statistics(dtype: torch.dtype) -> None:
    # Distinct values: which of several equal ones the CPU's selection points to is not defined.
    x = torch.randperm(63).reshape(3, 21).to(dtype)
    for function in (torch.median, torch.nanmedian):
        check(function, x)
        check(lambda x, f=function: f(x, 1), x)
        check(lambda x, f=function: f(x, 0, keepdim=True), x)
        check(function, x[0, 0])
    check(lambda x: torch.kthvalue(x, 4, 1), x)
    check(lambda x: torch.kthvalue(x, 2, 0, keepdim=True), x)
    with pytest.raises(RuntimeError, match="out of range"):
        torch.kthvalue(to_device(x), 22, 1)


def test_medians_with_nan() -> None:
    x = torch.tensor([[1.0, NAN, 3.0, 2.0], [NAN, NAN, NAN, NAN], [5.0, -INF, INF, 6.0]])
    check(lambda x: torch.median(x, 1), x)
    check(lambda x: torch.nanmedian(x, 1)[0], x)
    check(torch.median, x)
    check(torch.nanmedian, x)
    check(lambda x: torch.quantile(x[2:], 0.5), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_mode(dtype: torch.dtype) -> None:
    x = values((4, 30), dtype)
    got, indices = torch.mode(to_device(x), 1)
    torch.testing.assert_close(got.cpu(), torch.mode(x, 1)[0])
    torch.testing.assert_close(x.gather(1, indices.cpu()[:, None])[:, 0], got.cpu())


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 7, 200], ids="boundaries{}".format)
def test_bucketize(count: int, right: bool) -> None:
    boundaries = torch.linspace(-2, 2, count)
    x = torch.cat([torch.randn(50), boundaries[:5], torch.tensor([INF, -INF, NAN])])
    check(lambda x, b: torch.bucketize(x, b, right=right), x, boundaries)
    check(lambda x, b: torch.bucketize(x, b, right=right, out_int32=True), x.reshape(-1, 1), boundaries)
    check(lambda b: torch.bucketize(0.5, b, right=right), boundaries)
    check(lambda x, b: torch.bucketize(x, b, right=right), torch.arange(-4, 4), (boundaries * 3).long())


@pytest.mark.parametrize("count", [9, 100])
def test_searchsorted(count: int) -> None:
    rows = torch.randn(3, count).sort(1)[0]
    x = torch.cat([torch.randn(3, 20), rows[:, :4]], 1)
    check(torch.searchsorted, rows, x)
    check(lambda s, x: torch.searchsorted(s, x, side="right"), rows, x)
    unsorted = torch.randn(3, count)
    check(lambda s, x, order: torch.searchsorted(s, x, sorter=order), unsorted, x, unsorted.argsort(1))
    check(lambda s: torch.searchsorted(s[0].contiguous(), 0.25), rows)
    check(torch.searchsorted, rows, torch.empty(3, 0))


def test_histc() -> None:
    x = torch.cat([torch.randn(500), torch.tensor([-1.0, 1.0])])
    check(lambda x: torch.histc(x, 10, -1, 1), x)
    check(lambda x: torch.histc(x, 7), x)
    check(lambda x: torch.histc(x, 4), torch.full((5,), 2.0))
    check(lambda x: torch.histc(x, 4), torch.empty(0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_histc_of_integers(dtype: torch.dtype) -> None:
    """CUDA counts integers, the CPU only floats: transformers' mixture of experts relies on it."""
    x = torch.tensor([0, 3, 3, 4, 9, 1, 0], dtype=dtype)
    got = torch.histc(x.to(DEVICE), 5, 0, 4)
    assert got.dtype == dtype
    assert got.tolist() == [2, 1, 0, 2, 1]
    assert torch.histc(x.to(DEVICE), 3).tolist() == [3, 3, 1]


def test_gradients_go_to_the_chosen_elements() -> None:
    def run(x: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        weights = torch.arange(1, 6, dtype=x.dtype, device=x.device)
        total = (leaf.sort(1)[0] * weights).sum() + (leaf.topk(2, 1)[0] * 3).sum() + leaf.median(1)[0].sum()
        return [total.detach(), *torch.autograd.grad(total, leaf)]

    check(run, torch.randn(4, 5))


def test_large_rows() -> None:
    x = torch.randn(2, 5000)
    check(lambda x: torch.sort(x, stable=True), x)
    check(lambda x: x.topk(50), x)
    assert torch.sort(torch.arange(100_000, 0, -1, device=DEVICE))[0][0].item() == 1
