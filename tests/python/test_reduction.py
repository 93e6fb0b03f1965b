"""Reductions, norms and scans against the CPU: dtypes, dims, special values, empty tensors, out=, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import check, to_device
from torch import Tensor

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
# A row of each kind that a reduction can get wrong: NaN alone, NaN beside infinity, infinities, zeros, ties.
SPECIAL = [
    [1.0, NAN, 3.0, -2.0],
    [INF, NAN, -INF, NAN],
    [INF, 1.0, -INF, INF],
    [0.0, -0.0, 0.0, -0.0],
    [2.0, 2.0, -3.0, -3.0],
    [-INF, -INF, -INF, -INF],
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def values(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Values near 1, so that products neither vanish nor overflow."""
    if dtype == torch.bool:
        return torch.rand(sizes) > 0.3
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0 if dtype == torch.uint8 else -3, 4, sizes, dtype=dtype)
    return torch.randn(sizes, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)


def check_where_supported(function: Callable[..., Any], *arguments: Any) -> None:
    """`check`, and where the CPU refuses the call, the device must refuse it too."""
    try:
        function(*to_device(list(arguments), "cpu"))
    except (RuntimeError, NotImplementedError, IndexError):
        with pytest.raises((RuntimeError, NotImplementedError, IndexError)):
            function(*to_device(list(arguments)))
        return
    check(function, *arguments)


WHOLE = ("sum", "nansum", "mean", "prod", "max", "min", "argmax", "argmin", "all", "any", "count_nonzero", "aminmax")
PLAIN_OVER_DIM = ("sum", "nansum", "amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "logsumexp")
OVER_DIM = (*PLAIN_OVER_DIM, "mean", "prod")
OVER_DIMS = ("sum", "nansum", "mean", "amax", "amin", "all", "any", "logsumexp")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_whole_tensor(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    check_where_supported(function, values((3, 5), dtype))
    check_where_supported(function, values((), dtype))
    if name in ("sum", "prod", "all", "any", "count_nonzero", "max"):
        check_where_supported(function, values((0, 3), dtype))


@pytest.mark.parametrize("name", OVER_DIM)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_over_dim(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    check_where_supported(lambda x: function(x, dim=1, keepdim=True), values((2, 5, 3), dtype))
    check_where_supported(lambda x: function(x.transpose(0, 1), dim=-1), values((4, 3), dtype))
    check_where_supported(lambda x: function(x, dim=0), values((), dtype))


@pytest.mark.parametrize("name", OVER_DIMS)
def test_over_dims(name: str) -> None:
    function = getattr(torch, name)
    x = values((2, 3, 4), torch.float32)
    check(lambda x: function(x, dim=(0, 2)), x)
    check(lambda x: function(x, dim=(-1, 0), keepdim=True), x)
    check(lambda x: function(x, dim=(0, 1, 2)), x)
    empty = values((2, 0, 4), torch.float32)
    check(lambda x: function(x, dim=(0, 2)), empty)
    if name in ("sum", "all", "any", "logsumexp"):
        check(lambda x: function(x, dim=1), empty)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    for name in (*PLAIN_OVER_DIM, "cummax", "cummin"):
        check(lambda x, name=name: getattr(torch, name)(x, dim=1), x)
    check(torch.max, x)
    check(torch.argmin, x)
    check(torch.aminmax, x)
    check(torch.count_nonzero, x)


def test_empty_extremes_are_errors() -> None:
    for function in (torch.max, torch.min, torch.argmax, torch.amax):
        with pytest.raises((RuntimeError, IndexError)):
            function(torch.empty(0, 3, device="tpu"))
    with pytest.raises(IndexError):
        torch.ones(3, device="tpu").sum(dim=2)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bfloat16], ids=str)
def test_dtype_argument(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    check_where_supported(lambda x: function(x, dim=1, dtype=dtype), values((3, 4), torch.float32))
    check_where_supported(lambda x: function(x, dim=0, dtype=dtype), values((3, 4), torch.int64))


def test_out_arguments() -> None:
    x = values((3, 4), torch.float32)
    check(lambda x, out: torch.sum(x, 1, out=out), x, torch.empty(3))
    check(lambda x, out: torch.amax(x, 0, out=out), x, torch.empty(0))
    check(lambda x, v, i: torch.max(x, 1, out=(v, i)), x, torch.empty(3), torch.empty(3, dtype=torch.int64))
    check(lambda x: x.cumsum_(1), x)


def test_large_sums_are_accurate() -> None:
    check(torch.sum, torch.rand(1 << 20))
    check(lambda x: x.mean(1), torch.rand(4, 100_000) + 1000)
    check(lambda x: x.cumsum(0), torch.rand(5000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_moments(dtype: torch.dtype) -> None:
    x = values((4, 5, 3), dtype) + 10
    for function in (torch.var, torch.std, torch.var_mean, torch.std_mean):
        check(function, x)
        check(lambda x, f=function: f(x, dim=(0, 2), correction=0, keepdim=True), x)
    check(lambda x: x.var(1, correction=2.5), x)
    check(lambda x: x.std(0, correction=4), x)  # as many as there are elements: not a number or infinite


@pytest.mark.parametrize("order", [2, 1, 0, 0.5, 3, -1, INF, -INF])
def test_vector_norm(order: float) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        x = values((3, 4), dtype)
        check(lambda x: torch.linalg.vector_norm(x, order), x)
        check(lambda x: torch.norm(x, order, dim=1, keepdim=True), x)
    check(lambda x: torch.linalg.vector_norm(x, order, dim=0, dtype=torch.float64), values((3, 4), torch.float32))


def test_renorm_dist_cross() -> None:
    x, y = values((4, 3), torch.float32), values((4, 3), torch.float32)
    for order in (1, 2, INF):
        check(lambda x, p=order: x.renorm(p, 0, 1.5), x)
        check(lambda x, y, p=order: torch.dist(x, y, p), x, y)
    check(torch.dist, x, y[0])
    check(lambda x, y: torch.linalg.cross(x, y), x, y)
    check(lambda x, y: torch.linalg.cross(x, y, dim=0), values((3, 2), torch.int64), values((3, 1), torch.int64))
    check(torch.trace, values((3, 5), torch.float32))
    check(torch.trace, values((5, 3), torch.int32))


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_cdist(order: float) -> None:
    x, y = values((2, 5, 3), torch.float32), values((2, 4, 3), torch.float32)
    check(lambda x, y: torch.cdist(x, y, p=order), x, y)
    check(gradients(lambda x, y: torch.cdist(x, y, p=order)), x, y)
    check(lambda x: torch.cdist(x, x, p=order, compute_mode="donot_use_mm_for_euclid_dist"), x)


def test_cdist_of_many_points() -> None:
    # Both take |a|^2 - 2ab + |b|^2, whose cancellation near zero depends on the order of the sums.
    x, y = values((30, 8), torch.float32), values((40, 8), torch.float32)
    check(torch.cdist, x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool], ids=str)
def test_scans(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    check_where_supported(lambda x: function(x, dim=1), values((2, 20, 3), dtype))
    check_where_supported(lambda x: function(x.t(), dim=-1), values((33, 2), dtype))
    check_where_supported(lambda x: function(x, dim=0), values((), dtype))
    check_where_supported(lambda x: function(x, dim=1), values((2, 0), dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_scans_round_once(dtype: torch.dtype) -> None:
    x = values((3, 40), dtype)
    got = to_device(x).cumsum(1).cpu()
    torch.testing.assert_close(got, x.double().cumsum(1).to(dtype))


def test_comparisons_of_extremes_with_ties() -> None:
    x = torch.randint(0, 3, (6, 50))
    for name in ("max", "min", "argmax", "argmin", "cummax", "cummin"):
        check(lambda x, name=name: getattr(torch, name)(x, 1), x)
    check(torch.argmax, x)
    check(lambda x: torch.argmin(x, keepdim=True), x)


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a weighted sum of the first floating-point result, for every argument."""

    def run(*arguments: Tensor) -> list[Tensor]:
        leaves = [a.detach().requires_grad_() for a in arguments]
        result = function(*leaves)
        result = result if isinstance(result, Tensor) else result[0]
        weights = torch.arange(1, result.numel() + 1, dtype=result.dtype).reshape(result.shape).to(result.device)
        return list(torch.autograd.grad((result * weights).sum(), leaves))

    return run


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1),
        lambda x: x.mean((0, 2)),
        lambda x: x.prod(1),
        lambda x: x.amax(1),
        lambda x: x.max(1),
        lambda x: x.std(2),
        lambda x: x.var((0, 1)),
        lambda x: x.logsumexp(1),
        lambda x: x.norm(2, 1),
        lambda x: torch.linalg.vector_norm(x, 3),
        lambda x: x.cumsum(1),
        lambda x: x.cumprod(2),
        lambda x: x.cummax(1),
        lambda x: x.logcumsumexp(1),
        lambda x: x.renorm(2, 0, 1.0),
    ],
    ids=[
        "sum",
        "mean",
        "prod",
        "amax",
        "max",
        "std",
        "var",
        "logsumexp",
        "norm",
        "norm3",
        "cumsum",
        "cumprod",
        "cummax",
        "logcumsumexp",
        "renorm",
    ],
)
def test_gradients(function: Callable[..., Any]) -> None:
    check(gradients(function), values((3, 4, 2), torch.float64))
