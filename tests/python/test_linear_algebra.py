"""Matrix products, grouped products, triangular systems, Cholesky and LU, against the CPU."""

from __future__ import annotations

import pytest
import torch
from gradients import check_gradients, leaf
from helpers import DEVICE, assert_matches, check

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int8, torch.complex64)


def values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*sizes, dtype=dtype)
    return torch.randint(-9, 9, sizes).to(dtype)


def positive_definite(*sizes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    a = torch.randn(*sizes, sizes[-1], dtype=dtype)
    return a @ a.mH + torch.eye(sizes[-1], dtype=dtype)


# ---- products


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype: torch.dtype) -> None:
    check(torch.mm, values(3, 5, dtype=dtype), values(5, 4, dtype=dtype))
    check(torch.bmm, values(2, 3, 5, dtype=dtype), values(2, 5, 4, dtype=dtype))
    check(torch.mv, values(3, 5, dtype=dtype), values(5, dtype=dtype))
    check(torch.dot, values(5, dtype=dtype), values(5, dtype=dtype))
    check(torch.vdot, values(5, dtype=dtype), values(5, dtype=dtype))
    check(torch.matmul, values(2, 1, 3, 5, dtype=dtype), values(4, 5, 2, dtype=dtype))
    check(torch.outer, values(3, dtype=dtype), values(5, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta, alpha", [(1, 1), (0, 1), (2, 3), (1, 0)])
def test_added_products(dtype: torch.dtype, beta: int, alpha: int) -> None:
    scale = {"beta": beta, "alpha": alpha}
    # Sizes with few terms: narrow floats may differ by a rounding of the sum, which cancellation magnifies.
    tolerance = {"rtol": 1.6e-2, "atol": 2e-2} if dtype in (torch.bfloat16, torch.float16) else {}
    check(
        lambda c, a, b: torch.addmm(c, a, b, **scale),
        values(4, dtype=dtype),
        values(3, 2, dtype=dtype),
        values(2, 4, dtype=dtype),
        **tolerance,
    )
    check(
        lambda c, a, b: torch.addmv(c, a, b, **scale),
        values(3, dtype=dtype),
        values(3, 2, dtype=dtype),
        values(2, dtype=dtype),
        **tolerance,
    )
    check(
        lambda c, a, b: torch.baddbmm(c, a, b, **scale),
        values(2, 3, 4, dtype=dtype),
        values(2, 3, 2, dtype=dtype),
        values(2, 2, 4, dtype=dtype),
        **tolerance,
    )
    check(
        lambda c, a, b: torch.addbmm(c, a, b, **scale),
        values(3, 4, dtype=dtype),
        values(2, 3, 2, dtype=dtype),
        values(2, 2, 4, dtype=dtype),
        **tolerance,
    )
    check(
        lambda c, a, b: torch.addr(c, a, b, **scale),
        values(3, 4, dtype=dtype),
        values(3, dtype=dtype),
        values(4, dtype=dtype),
        **tolerance,
    )


def test_beta_of_zero_ignores_the_added_tensor() -> None:
    broken = torch.full((3, 4), float("nan"))
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), broken, values(3, 2), values(2, 4))
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.0, alpha=0.5), broken, values(3, 2), values(2, 4))


def test_scales_may_change_on_every_call() -> None:
    c, a, b = values(3, 4), values(3, 2), values(2, 4)
    for k in range(6):
        check(lambda c, a, b, k=k: torch.addmm(c, a, b, beta=0.25 * k, alpha=1.5 - 0.5 * k), c, a, b)


def test_bool_outer_sum() -> None:
    c, a, b = (torch.tensor(x) for x in ([[True, False], [False, False]], [True, False], [True, True]))
    for beta in (True, False):
        check(lambda c, a, b, beta=beta: torch.addr(c, a, b, beta=beta, alpha=True), c, a, b)
    with pytest.raises(RuntimeError):
        torch.mm(c.to(DEVICE), c.to(DEVICE))


def test_large_integers_are_exact() -> None:
    check(torch.mm, torch.randint(-(2**40), 2**40, (4, 6)), torch.randint(-(2**30), 2**30, (6, 5)))
    check(
        torch._int_mm,
        torch.randint(-128, 128, (24, 64)).to(torch.int8),
        torch.randint(-128, 128, (64, 16)).to(torch.int8),
    )


def test_product_edges() -> None:
    check(torch.mm, values(3, 0), values(0, 4))
    check(torch.mm, values(0, 3), values(3, 4))
    check(torch.bmm, values(0, 3, 2), values(0, 2, 3))
    check(torch.mm, values(5, 3).t(), values(4, 5).t())
    check(torch.mm, values(8, 6)[::2, ::3], values(2, 4).expand(2, 4))
    check(torch.dot, values(0), values(0))
    check(torch.matmul, values(3, 4).to(torch.complex64).conj(), values(4, 2).to(torch.complex64))
    check(lambda a, b: torch.mm(a, b, out=torch.empty(3, 4, device=a.device)), values(3, 5), values(5, 4))
    check(lambda c, a, b: c.addmm_(a, b), values(3, 4), values(3, 5), values(5, 4))
    with pytest.raises(RuntimeError):
        torch.mm(values(3, 4).to(DEVICE), values(3, 4).to(DEVICE))


def test_activation() -> None:
    for use_gelu in (False, True):
        check(
            lambda c, a, b, g=use_gelu: torch._addmm_activation(c, a, b, use_gelu=g),
            values(4),
            values(3, 5),
            values(5, 4),
        )


def test_product_gradients() -> None:
    check_gradients(torch.mm, leaf(3, 5), leaf(5, 4))
    check_gradients(torch.matmul, leaf(2, 3, 5), leaf(5, 4))
    check_gradients(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), leaf(4), leaf(3, 5), leaf(5, 4))
    check_gradients(torch.nn.functional.linear, leaf(2, 7, 5), leaf(3, 5), leaf(3))
    check_gradients(torch.baddbmm, leaf(2, 3, 4), leaf(2, 3, 5), leaf(2, 5, 4))
    check_gradients(lambda a, b: torch.einsum("bij,bkj->bik", a, b), leaf(2, 3, 4), leaf(2, 5, 4))


# ---- grouped products


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
@pytest.mark.parametrize("ends", [(8, 16, 32, 48), (0, 16, 16, 48), (48, 48, 48, 48), (3, 5, 41, 48)])
def test_grouped_products(dtype: torch.dtype, ends: tuple[int, ...]) -> None:
    offsets = torch.tensor(ends, dtype=torch.int32)
    bounds = list(zip((0, *ends), ends, strict=False))

    def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=offsets.to(a.device))

    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.float()

    tolerance = {"rtol": 1.6e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    a, b = values(48, 16, dtype=dtype), values(4, 32, 16, dtype=dtype).transpose(1, 2)
    want = torch.cat([wide(a[i:j]) @ wide(b[g]) for g, (i, j) in enumerate(bounds)])
    assert_matches(grouped(a.to(DEVICE), b.to(DEVICE)), want.to(dtype), **tolerance)

    a, b = values(4, 24, 16, dtype=dtype), values(48, 16, dtype=dtype).t()
    want = torch.cat([wide(a[g]) @ wide(b[:, i:j]) for g, (i, j) in enumerate(bounds)], 1)
    assert_matches(grouped(a.to(DEVICE), b.to(DEVICE)), want.to(dtype), **tolerance)

    a, b = values(48, 16, dtype=dtype).t(), values(48, 32, dtype=dtype)
    want = torch.stack([wide(a[:, i:j]) @ wide(b[i:j]) for i, j in bounds])
    assert_matches(grouped(a.to(DEVICE), b.to(DEVICE)), want.to(dtype), **tolerance)


def test_grouped_products_of_stacks() -> None:
    check(torch._grouped_mm, values(3, 8, 16), values(3, 16, 8))


def test_grouped_product_gradients() -> None:
    offsets = torch.tensor([8, 24, 32], dtype=torch.int32)
    a, b = leaf(32, 16, dtype=torch.float32), leaf(3, 16, 8, dtype=torch.float32)

    def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=offsets.to(a.device))

    check_gradients(grouped, a, b)


# ---- systems and factorisations

MATRICES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def system_tolerance(dtype: torch.dtype) -> dict[str, float]:
    """Solutions differ by the condition number times the rounding: the two sides eliminate in another order."""
    return {"rtol": 1e-4, "atol": 1e-4} if dtype in (torch.float32, torch.complex64) else {"rtol": 1e-7, "atol": 1e-7}


def well_conditioned(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*sizes, dtype=dtype) / sizes[-1] + torch.eye(sizes[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", MATRICES)
@pytest.mark.parametrize("upper", (True, False))
@pytest.mark.parametrize("left", (True, False))
@pytest.mark.parametrize("unit", (True, False))
def test_solve_triangular(dtype: torch.dtype, upper: bool, left: bool, unit: bool) -> None:
    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    a = well_conditioned(2, 1, 4, 4, dtype=dtype)
    a = a.triu() if upper else a.tril()
    b = torch.randn(3, 4, 5, dtype=dtype) if left else torch.randn(3, 5, 4, dtype=dtype)
    check(solve, a, b, **system_tolerance(dtype))
    check(solve, a[0, 0], b[0][:, :0] if left else b[0][:0], **system_tolerance(dtype))


@pytest.mark.parametrize("dtype", MATRICES)
@pytest.mark.parametrize("upper", (True, False))
def test_cholesky(dtype: torch.dtype, upper: bool) -> None:
    a, b = positive_definite(2, 5, dtype=dtype), torch.randn(2, 5, 3, dtype=dtype)
    tolerance = system_tolerance(dtype)
    check(lambda a: torch.linalg.cholesky(a, upper=upper), a, **tolerance)
    factor = torch.linalg.cholesky(a, upper=upper)
    check(lambda b, f: torch.cholesky_solve(b, f, upper), b, factor, **tolerance)
    check(lambda f: torch.cholesky_inverse(f, upper), factor, **tolerance)
    check(lambda a: torch.linalg.cholesky_ex(a, upper=upper), torch.zeros(0, 3, 3, dtype=dtype))


def test_cholesky_names_the_minor() -> None:
    a = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1)
    a[1, 2, 2] = -1
    a[2, 0, 0] = 0
    info = torch.linalg.cholesky_ex(a.to(DEVICE)).info
    assert info.tolist() == torch.linalg.cholesky_ex(a).info.tolist() == [0, 3, 1]
    with pytest.raises(RuntimeError, match="positive-definite"):
        torch.linalg.cholesky(a.to(DEVICE))


@pytest.mark.parametrize("dtype", MATRICES)
@pytest.mark.parametrize("sizes", [(4, 4), (2, 3, 5, 5), (6, 3), (3, 6), (0, 0), (2, 0, 3)])
def test_lu(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    a = torch.randn(*sizes, dtype=dtype)
    check(torch.linalg.lu_factor_ex, a, **system_tolerance(dtype))
    check(torch.linalg.lu, a, **system_tolerance(dtype))
    lu, pivots = torch.linalg.lu_factor(a)
    check(torch.lu_unpack, lu, pivots, **system_tolerance(dtype))


@pytest.mark.parametrize("dtype", MATRICES)
@pytest.mark.parametrize("left", (True, False))
@pytest.mark.parametrize("adjoint", (True, False))
def test_lu_solve(dtype: torch.dtype, left: bool, adjoint: bool) -> None:
    lu, pivots = torch.linalg.lu_factor(torch.randn(2, 4, 4, dtype=dtype) + 3 * torch.eye(4, dtype=dtype))
    b = torch.randn(2, 4, 3, dtype=dtype) if left else torch.randn(2, 3, 4, dtype=dtype)
    check(
        lambda lu, p, b: torch.linalg.lu_solve(lu, p, b, left=left, adjoint=adjoint),
        lu,
        pivots,
        b,
        **system_tolerance(dtype),
    )


@pytest.mark.parametrize("dtype", MATRICES)
def test_inverse_solve_determinant(dtype: torch.dtype) -> None:
    a, b = well_conditioned(2, 5, 5, dtype=dtype), torch.randn(2, 5, 3, dtype=dtype)
    tolerance = system_tolerance(dtype)
    for x in (a, a.mT):
        check(torch.linalg.inv, x, **tolerance)
        check(torch.linalg.solve, x, b, **tolerance)
        check(torch.linalg.det, x, **tolerance)
        check(torch.linalg.slogdet, x, **tolerance)
    check(torch.linalg.solve, a[0], b[0, :, 0], **tolerance)
    check(lambda a, b: torch.linalg.solve(a, b, left=False), a, b.mT, **tolerance)


def test_singular_matrices() -> None:
    a = torch.eye(3)
    a[1, 1] = 0
    assert torch.linalg.inv_ex(a.to(DEVICE)).info.item() == 2
    with pytest.raises(RuntimeError, match="singular"):
        torch.linalg.inv(a.to(DEVICE))
    check(torch.linalg.det, a)


def test_system_gradients() -> None:
    a, b = well_conditioned(2, 4, 4, dtype=torch.float64).requires_grad_(), leaf(2, 4, 3)
    check_gradients(torch.linalg.solve, a, b)
    check_gradients(lambda a, b: torch.linalg.solve(a.mT, b), a, b)
    check_gradients(torch.linalg.inv, a)
    check_gradients(torch.linalg.det, a)
    check_gradients(lambda a: torch.linalg.det(a.mT), a)
    check_gradients(torch.linalg.slogdet, a)
    check_gradients(torch.linalg.cholesky, positive_definite(2, 4).requires_grad_())
    check_gradients(lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False), a, b)


@pytest.mark.parametrize("rows", [1, 2, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_few_rows_times_a_transposed_weight(rows: int, dtype: torch.dtype) -> None:
    """Products with few rows are spelled the other way round where the right operand is a transposed view."""
    x, weight, bias = (torch.randint(-4, 5, shape).to(dtype) for shape in ((rows, 6), (7, 6), (7,)))
    check(lambda x, w: x @ w.t(), x, weight)
    check(lambda x, w, b: torch.addmm(b, x, w.t(), beta=2, alpha=3), x, weight, bias)
    check(lambda x, w: torch.bmm(x.expand(3, -1, -1), w.expand(3, -1, -1).transpose(1, 2)), x, weight)
    check(lambda x, w: x @ w.t()[:, 1:4], x, weight)
    check(lambda x, w: (w[:rows] @ x.t()).mT, x, weight)
