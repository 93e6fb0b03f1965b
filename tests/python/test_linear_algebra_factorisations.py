"""QR, eigenvalues, singular values, least squares, LDL and the matrix exponential, against the CPU.

What a matrix determines is compared directly. Eigenvectors and singular vectors are determined up to a phase, and not
at all within a space of equal values: those are checked by what they must satisfy. PyTorch's own samples are in
op_db/.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import check_gradients, leaf
from helpers import DEVICE, assert_matches, check, run_python

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def rounding(dtype: torch.dtype, size: float, factor: float = 100) -> dict[str, float]:
    """Errors of a backward stable method: so many units of rounding of the whole matrix's size, in every entry.

    LAPACK's own results differ from the exact ones by 10 to 30 of these at the sizes used here.
    """
    return {"rtol": 0, "atol": factor * torch.finfo(dtype).eps * max(size, 1e-30)}


def deficient(m: int, n: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(m, rank, dtype=dtype) @ torch.randn(rank, n, dtype=dtype)


def spectral_norm(a: torch.Tensor) -> float:
    return torch.linalg.matrix_norm(a, 2).max().item() if a.numel() else 0.0


def assert_orthonormal_columns(q: torch.Tensor) -> None:
    """On the host: a product on the device would round once more."""
    one = torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], -1, -1)
    torch.testing.assert_close(q.mH @ q, one, **rounding(q.dtype, 1))


# ---- QR

SHAPES = ((4, 4), (7, 3), (3, 7), (1, 1), (2, 3, 5, 4), (0, 3), (3, 0), (0, 0), (0, 4, 3), (2, 0, 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ("reduced", "complete", "r"))
def test_qr(dtype: torch.dtype, mode: str) -> None:
    for shape in SHAPES:
        check(lambda a: torch.linalg.qr(a, mode=mode), torch.randn(*shape, dtype=dtype), strides=True)


def test_qr_of_columns_that_need_no_reflection() -> None:
    """The signs are LAPACK's: no reflection where a column is finished, even if its leading entry is negative."""
    for dtype in DTYPES:
        check(torch.geqrf, torch.diag(torch.tensor([-2, 3, -1, 0])).to(dtype))
        check(torch.geqrf, torch.zeros(3, 2, dtype=dtype))
    check(torch.geqrf, torch.tensor([[1j, 2], [0, -3j]], dtype=torch.complex128))
    # Squares overflow, or vanish. Compared at the size of 1, for which the tolerances are meant.
    check(lambda x: torch.geqrf(x)[0] / 1e30, torch.randn(5, 3) * 1e30)
    check(lambda x: torch.geqrf(x)[0] * 1e200, torch.randn(5, 3, dtype=torch.float64) * 1e-200)


def test_products_with_reflections() -> None:
    packed, tau = torch.geqrf(torch.randn(2, 5, 3, dtype=torch.complex128))
    for left, transpose in itertools.product((True, False), repeat=2):
        c = torch.randn(2, 5, 4, dtype=packed.dtype)
        check(lambda p, t, c, a=(left, transpose): torch.ormqr(p, t, c, *a), packed, tau, c if left else c.mT)
    check(torch.linalg.householder_product, packed, tau[..., :2])


# ---- matrix exponential


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exp(dtype: torch.dtype) -> None:
    for shape in ((4, 4), (2, 3, 5, 5), (1, 1), (0, 0), (0, 3, 3)):
        for size in (1e-3, 0.3, 3.0, 20.0):
            a = torch.randn(*shape, dtype=dtype) * size
            # The relative error of any method grows with the norm, by which rounding of A itself is magnified.
            norm = torch.linalg.matrix_norm(a, 1).max().item() if a.numel() else 0.0
            want = torch.linalg.matrix_exp(a)
            largest = want.abs().max().item() if a.numel() else 0.0
            tolerance = {} if norm < 1 else rounding(dtype, largest, 4 * (1 + norm))
            check(torch.linalg.matrix_exp, a, **tolerance)


def test_matrix_exp_of_a_mixed_batch() -> None:
    """Each matrix has its own number of squarings."""
    a = torch.randn(4, 3, 3, dtype=torch.float64) * torch.tensor([1e-9, 1, 30, 0])[:, None, None]
    check(torch.linalg.matrix_exp, a)
    check(torch.linalg.matrix_exp, torch.full((2, 2), float("nan")))
    check_gradients(torch.linalg.matrix_exp, leaf(2, 3, 3))


# ---- Hermitian eigenvalues


def check_eigh(a: torch.Tensor, uplo: str = "L") -> None:
    values, vectors = (x.cpu() for x in torch.linalg.eigh(a.to(DEVICE), UPLO=uplo))
    want = torch.linalg.eigh(a, UPLO=uplo)
    assert (values.dtype, vectors.dtype) == (want[0].dtype, want[1].dtype)
    assert vectors.stride() == want[1].stride()
    size = want[0].abs().max().item() if a.numel() else 0.0
    torch.testing.assert_close(values, want[0], **rounding(a.dtype, size))
    only_values = torch.linalg.eigvalsh(a.to(DEVICE), UPLO=uplo).cpu()
    torch.testing.assert_close(only_values, want[0], **rounding(a.dtype, size))
    assert_orthonormal_columns(vectors)
    half = a.tril(-1) if uplo == "L" else a.triu(1)
    whole = half + half.mH + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real).to(a.dtype)
    torch.testing.assert_close(
        (vectors * values.to(a.dtype).unsqueeze(-2)) @ vectors.mH, whole, **rounding(a.dtype, size)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigh(dtype: torch.dtype) -> None:
    for shape in ((1, 1), (2, 3, 5, 5), (32, 32), (0, 0), (0, 3, 3)):
        a = torch.randn(*shape, dtype=dtype)
        for uplo in ("L", "U"):  # the other triangle holds other numbers, which must not be read
            check_eigh(a, uplo)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigh_of_special_matrices(dtype: torch.dtype) -> None:
    one, low = torch.eye(6, dtype=dtype), deficient(6, 3, 3, dtype)  # of one size: each size is a compile
    check_eigh(one)
    check_eigh(torch.zeros(6, 6, dtype=dtype))
    check_eigh(torch.ones(6, 6, dtype=dtype))  # rank 1: five equal eigenvalues
    check_eigh(torch.diag(torch.tensor([3, -1, 2, 0, 5, 2])).to(dtype))
    check_eigh(low @ low.mH)
    check_eigh(one * 1e-25 + 1e-26)  # squares underflow in float32
    check_eigh(torch.randn(6, 6, dtype=dtype) * 1e25)


# ---- singular values


def check_svd(a: torch.Tensor) -> None:
    want = torch.linalg.svdvals(a)
    size = want.max().item() if want.numel() else 0.0
    torch.testing.assert_close(torch.linalg.svdvals(a.to(DEVICE)).cpu(), want, **rounding(a.dtype, size))
    for full in (True, False):
        u, s, vh = (x.cpu() for x in torch.linalg.svd(a.to(DEVICE), full_matrices=full))
        for got, expected in zip((u, s, vh), torch.linalg.svd(a, full_matrices=full), strict=True):
            assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
        torch.testing.assert_close(s, want, **rounding(a.dtype, size))
        assert_orthonormal_columns(u)
        assert_orthonormal_columns(vh.mH)
        k = s.shape[-1]
        made = (u[..., :k] * s.to(a.dtype).unsqueeze(-2)) @ vh[..., :k, :]
        torch.testing.assert_close(made, a, **rounding(a.dtype, size))


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd(dtype: torch.dtype) -> None:
    for shape in ((1, 1), (3, 7), (2, 3, 5, 4), (30, 41)):
        check_svd(torch.randn(*shape, dtype=dtype))
    for shape in ((0, 3), (3, 0), (0, 0), (0, 4, 3)):
        a = torch.randn(*shape, dtype=dtype)
        check(torch.linalg.svd, a)
        check(torch.linalg.svdvals, a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd_of_deficient_matrices(dtype: torch.dtype) -> None:
    for a in (
        deficient(6, 6, 2, dtype),
        torch.zeros(6, 6, dtype=dtype),
        torch.ones(6, 6, dtype=dtype),
        torch.diag(torch.tensor([3, -1, 2, 0, 5, 2])).to(dtype),
        torch.randn(6, 6, dtype=dtype) * 1e25,  # squares overflow in float32
        torch.randn(6, 6, dtype=dtype) * 10.0 ** -torch.arange(6),
    ):
        check_svd(a)
    check_svd(deficient(5, 9, 3, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_follows_from_singular_values(dtype: torch.dtype) -> None:
    a, low = torch.randn(2, 5, 3, dtype=dtype), deficient(6, 5, 2, dtype)
    size = spectral_norm(torch.linalg.pinv(a))
    for x in (a, a.mT):
        # The condition number times the rounding, relative to the inverse's size.
        condition = torch.linalg.cond(x).max().item()
        check(torch.linalg.pinv, x, **rounding(dtype, size * condition))
        check(torch.linalg.matrix_rank, x)
        check(torch.linalg.cond, x, **rounding(dtype, condition**2))
    check(torch.linalg.matrix_rank, low)
    check(lambda x: torch.linalg.matrix_rank(x @ x.mH, hermitian=True), low)
    # In single precision the third singular value, rounding error of A, must be cut off: by the tolerance given.
    check(
        lambda x: torch.linalg.pinv(x, rtol=1e-4),
        low,
        **rounding(dtype, spectral_norm(torch.linalg.pinv(low, rtol=1e-4)) * 100),
    )
    for order in (2, -2, "nuc"):
        check(lambda x, p=order: torch.linalg.matrix_norm(x, p), a, **rounding(dtype, 3 * spectral_norm(a), 10))


# ---- eigenvalues of general matrices


def farthest(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest distance between the members of two lists of complex numbers, in the best order found greedily."""
    left, most = list(want.to(torch.complex128)), 0.0
    for value in got.to(torch.complex128):
        distances = [(value - other).abs().item() for other in left]
        nearest = min(range(len(left)), key=distances.__getitem__)
        most = max(most, distances[nearest])
        del left[nearest]
    return most


def check_eig(a: torch.Tensor, sensitivity: float = 100) -> None:
    """The order of the eigenvalues is nobody's promise, and phases and equal eigenvalues are free."""
    values, vectors = (x.cpu() for x in torch.linalg.eig(a.to(DEVICE)))
    want_values, want_vectors = torch.linalg.eig(a)
    assert (values.dtype, values.shape) == (want_values.dtype, want_values.shape)
    assert (vectors.dtype, vectors.shape, vectors.stride()) == (
        want_vectors.dtype,
        want_vectors.shape,
        want_vectors.stride(),
    )
    only_values = torch.linalg.eigvals(a.to(DEVICE)).cpu()
    size = spectral_norm(a)
    n = a.shape[-1]
    allowed = sensitivity * torch.finfo(a.dtype).eps * size
    for one, two, want in zip(
        values.reshape(-1, n), only_values.reshape(-1, n), want_values.reshape(-1, n), strict=True
    ):
        assert farthest(one, want) <= allowed
        assert farthest(two, want) <= allowed
        if not a.dtype.is_complex:  # closed under conjugation, exactly
            assert farthest(one, one.conj()) == 0
    residual = a.to(vectors.dtype) @ vectors - vectors * values.unsqueeze(-2)
    torch.testing.assert_close(residual, torch.zeros_like(residual), **rounding(a.dtype, size))
    lengths = torch.linalg.vector_norm(vectors, dim=-2)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), **rounding(a.dtype, 1))
    if not a.dtype.is_complex:
        real = (values.imag == 0).unsqueeze(-2).expand_as(vectors)
        assert not vectors.imag[real].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_eig(dtype: torch.dtype) -> None:
    for shape in ((1, 1), (2, 2), (2, 3, 5, 5), (32, 32)):
        # Eigenvalues move by their condition numbers, some tens here, times the rounding.
        check_eig(torch.randn(*shape, dtype=dtype), sensitivity=1000)
    for shape in ((0, 0), (0, 3, 3)):
        check(torch.linalg.eig, torch.randn(*shape, dtype=dtype))
        check(torch.linalg.eigvals, torch.randn(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eig_of_special_matrices(dtype: torch.dtype) -> None:
    symmetric = torch.randn(6, 6, dtype=dtype)
    blocks = torch.block_diag(*(torch.tensor([[1.0, k], [-k, 1.0]]) for k in (1.0, 2.0, 2.0)))
    for a in (
        torch.zeros(6, 6),
        torch.eye(6),
        torch.diag(torch.ones(5), 1),  # one eigenvector for six eigenvalues
        torch.roll(torch.eye(6), 1, 0),  # unshifted QR never converges: all of one size
        torch.ones(6, 6),
        blocks,
        torch.randn(6, 6, dtype=dtype).triu(),
        symmetric + symmetric.mH,
    ):
        check_eig(a.to(dtype))
    check_eig(torch.randn(6, 6, dtype=dtype) * 1e20, sensitivity=1000)


def test_eig_gradients() -> None:
    torch.manual_seed(1)
    a = leaf(2, 4, 4)
    check_gradients(lambda a: torch.linalg.eigvals(a).abs().sum(), a)
    check_gradients(lambda a: torch.linalg.eig(a).eigenvectors.abs().square().sum(-1), a)


# ---- least squares


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("driver", (None, "gels", "gelsy", "gelsd", "gelss"))
def test_lstsq(dtype: torch.dtype, driver: str | None) -> None:
    def solve(a: torch.Tensor, b: torch.Tensor) -> Any:
        return tuple(torch.linalg.lstsq(a, b, driver=driver))

    cases = [
        ((6, 3), (6, 2)),
        ((6, 3), (6,)),
        ((3, 6), (3, 2)),
        ((2, 6, 3), (2, 6, 2)),
        ((2, 6, 3), (2, 6)),
        ((2, 3, 5, 3), (1, 3, 5, 2)),
        ((0, 5, 3), (0, 5, 2)),
        ((0, 3), (0, 2)),
    ]
    for sizes_a, sizes_b in cases:
        a, b = torch.randn(*sizes_a, dtype=dtype), torch.randn(*sizes_b, dtype=dtype)
        # The error of the solution is the rounding times the condition number, squared where residuals are not small.
        condition = torch.linalg.cond(a).max().item() if a.numel() else 1.0
        check(solve, a, b, **rounding(dtype, 3 * condition**2, 10))
    if driver != "gels":
        both = torch.stack([deficient(6, 4, 2, dtype), torch.randn(6, 4, dtype=dtype)])
        check(
            lambda a, b: torch.linalg.lstsq(a, b, rcond=1e-4, driver=driver).rank,
            both,
            torch.randn(2, 6, 2, dtype=dtype),
        )
        low, b = both[0], torch.randn(6, 2, dtype=dtype)
        solution = torch.linalg.lstsq(low.to(DEVICE), b.to(DEVICE), rcond=1e-4, driver=driver).solution
        inverse = torch.linalg.pinv(low, rtol=1e-4)
        condition = spectral_norm(low) * spectral_norm(inverse)
        assert_matches(solution, inverse @ b, **rounding(dtype, 3 * spectral_norm(inverse) * condition, 10))


@pytest.mark.parametrize("driver", ("gels", "gelsy", "gelsd", "gelss"))
def test_lstsq_of_nothing(driver: str) -> None:
    for a in (torch.zeros(3, 2), torch.zeros(2, 3), torch.zeros(3, 0), torch.zeros(0, 0)):
        check(lambda a, b: tuple(torch.linalg.lstsq(a, b, driver=driver)), a, torch.ones(a.shape[0], 2))


def test_lstsq_gradients() -> None:
    check_gradients(lambda a, b: torch.linalg.lstsq(a, b).solution, leaf(5, 3), leaf(5, 2))
    check_gradients(lambda a, b: torch.linalg.lstsq(a, b, driver="gels").solution, leaf(2, 3, 5), leaf(2, 3, 1))


# ---- LDL


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", (True, False))
def test_ldl(dtype: torch.dtype, hermitian: bool) -> None:
    for shape in ((1, 1), (4, 7, 7), (30, 30), (2, 0, 0), (0, 3, 3)):
        a, b = torch.randn(*shape, dtype=dtype), torch.randn(*shape[:-1], 3, dtype=dtype)
        size = spectral_norm(a)
        # Multipliers grow a little over the steps; the pivots must be the same ones.
        check(
            lambda a: torch.linalg.ldl_factor_ex(a, hermitian=hermitian),
            a,
            strides=a.numel() > 1,
            **rounding(dtype, size, 1000),
        )
        ld, pivots = torch.linalg.ldl_factor(a, hermitian=hermitian)
        half = a.tril(-1)
        diagonal = torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))
        whole = half + (half.mH + diagonal.real.to(dtype) if hermitian else half.mT + diagonal)
        condition = torch.linalg.cond(whole).max().item() if a.numel() else 1.0
        check(
            lambda ld, p, b: torch.linalg.ldl_solve(ld, p, b, hermitian=hermitian),
            ld,
            pivots,
            b,
            **rounding(dtype, condition**2 / max(size, 1)),
        )


def test_ldl_pivots() -> None:
    check(torch.linalg.ldl_factor_ex, torch.tensor([[0.0, 1], [1, 0]]))  # one block of two
    check(torch.linalg.ldl_factor_ex, torch.zeros(2, 3, 3))
    a = torch.randn(6, 6, dtype=torch.float64)
    a[2], a[:, 2] = 0, 0
    check(torch.linalg.ldl_factor_ex, a)
    with pytest.raises(torch.linalg.LinAlgError, match="zeros"):
        torch.linalg.ldl_factor_ex(torch.zeros(2, 2, device=DEVICE), check_errors=True)[0].cpu()


# ---- errors

WRONG: dict[str, Callable[[str], Any]] = {
    "eigh_non_square": lambda device: torch.linalg.eigh(torch.ones(2, 3, device=device)),
    "eigh_vector": lambda device: torch.linalg.eigh(torch.ones(3, device=device)),
    "eigh_uplo": lambda device: torch.linalg.eigh(torch.ones(3, 3, device=device), UPLO="X"),
    "eigh_nan": lambda device: torch.linalg.eigh(torch.full((3, 3), float("nan"), device=device))[0].cpu(),
    "eig_non_square": lambda device: torch.linalg.eig(torch.ones(2, 3, device=device)),
    "eig_nan": lambda device: torch.linalg.eig(torch.full((3, 3), float("nan"), device=device))[0].cpu(),
    "svd_integers": lambda device: torch.linalg.svd(torch.ones(3, 3, dtype=torch.int64, device=device)),
    "svd_nan": lambda device: torch.linalg.svd(torch.full((3, 3), float("nan"), device=device))[1].cpu(),
    "svd_driver": lambda device: torch.linalg.svd(torch.ones(3, 3, device=device), driver="gesvd")[1].cpu(),
    "qr_mode": lambda device: torch.linalg.qr(torch.ones(3, 3, device=device), mode="x"),
    "matrix_exp_non_square": lambda device: torch.linalg.matrix_exp(torch.ones(2, 3, device=device)),
    "ldl_non_square": lambda device: torch.linalg.ldl_factor(torch.ones(2, 3, device=device)),
    "lstsq_rows": lambda device: torch.linalg.lstsq(torch.ones(3, 2, device=device), torch.ones(4, 2, device=device)),
    "lstsq_driver": lambda device: torch.linalg.lstsq(
        torch.ones(3, 2, device=device), torch.ones(3, 2, device=device), driver="x"
    ),
    "lstsq_dtypes": lambda device: torch.linalg.lstsq(
        torch.ones(3, 2, device=device), torch.ones(3, 2, dtype=torch.float64, device=device)
    ),
    "lstsq_deficient": lambda device: torch.linalg.lstsq(
        torch.eye(3, 2, device=device) * torch.tensor([1, 0], device=device),
        torch.ones(3, 2, device=device),
        driver="gels",
    ),
    "householder_shapes": lambda device: torch.linalg.householder_product(
        torch.ones(3, 4, device=device), torch.ones(2, device=device)
    ),
    "ormqr_shapes": lambda device: torch.ormqr(
        torch.ones(3, 2, device=device), torch.ones(2, device=device), torch.ones(4, 2, device=device)
    ),
    "inv_singular": lambda device: torch.linalg.inv(torch.zeros(2, 2, device=device)),
    "solve_singular": lambda device: torch.linalg.solve(torch.zeros(2, 2, device=device), torch.ones(2, device=device)),
    "cholesky_indefinite": lambda device: torch.linalg.cholesky(-torch.eye(2, device=device)),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as want:
        WRONG[name]("cpu")
    with pytest.raises(want.type):
        WRONG[name](DEVICE)


def test_synchronise_raises_linear_algebra_errors() -> None:
    source = """
        import torch
        values = torch.linalg.eigvalsh(torch.full((2, 2), float("nan"), device="tpu"))
        try:
            torch.tpu.synchronize()
        except torch.linalg.LinAlgError as error:
            assert "converge" in str(error)
        else:
            raise AssertionError("no error")
    """
    run_python(source)


# ---- all of torch.linalg


def test_out_forms() -> None:
    a = torch.randn(3, 3, dtype=torch.float64)
    symmetric = a + a.mT
    for function, argument in ((torch.linalg.qr, a), (torch.linalg.eigh, symmetric), (torch.linalg.svd, a)):
        on_device = argument.to(DEVICE)
        want = function(on_device)
        out = tuple(torch.empty_like(x) for x in want)
        function(on_device, out=out)
        assert_matches(out, tuple(x.cpu() for x in want))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", (64, 129))
def test_larger_sizes(dtype: torch.dtype, n: int) -> None:
    a = torch.randn(n, n, dtype=dtype)
    check_eigh(a)
    check_svd(a)
    check_eig(a, sensitivity=10000)
