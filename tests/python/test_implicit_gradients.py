"""Gradients of samples with respect to the parameters of gamma and beta distributions.

PyTorch's own kernels are approximations that are good to about three digits ("accurate to within 0.1%", it says of
them), ours sum series in float64: both are compared with derivatives of the distribution function."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, check
from torch import Tensor

SHAPES = (0.02, 0.3, 1.0, 2.5, 9.0, 70.0, 900.0, 9e3, 5e4, 3e6)


def quantile_gradient(function: object, parameter: Tensor, x: Tensor) -> Tensor:
    """-(dF/da) / (dF/dx) by differences of the fifth order, of a distribution function F(a, x) in float64."""

    def derivative(of: object, at: Tensor, step: Tensor) -> Tensor:
        f = [of(at + k * step) for k in (-2, -1, 1, 2)]  # type: ignore[operator]
        return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)

    by_a = derivative(lambda a: function(a, x), parameter, parameter * 1e-3)  # type: ignore[operator]
    by_x = derivative(lambda v: function(parameter, v), x, x * 1e-3)  # type: ignore[operator]
    return -by_a / by_x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_gamma(dtype: torch.dtype, shape: float) -> None:
    a = torch.full((200,), shape, dtype=dtype)
    x = torch._standard_gamma(a)
    x = x[x > torch.finfo(dtype).tiny * 1e6]
    a = a[: x.numel()]
    got = torch._standard_gamma_grad(a.to(DEVICE), x.to(DEVICE)).cpu()
    # PyTorch's kernels.
    torch.testing.assert_close(got, torch._standard_gamma_grad(a, x), rtol=2e-3, atol=1e-5)
    if shape > 1e4:
        return  # the differences below lose too many digits
    near = ((x - a).abs() < 3 * a.sqrt()) & (x > 1e-3)
    want = quantile_gradient(torch.special.gammainc, a.double(), x.double())[near]
    # The differences are good to some 1e-6 where the function is flat.
    torch.testing.assert_close(got.double()[near], want, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("b", [1, 2, 5, 20])
@pytest.mark.parametrize("a", [0.1, 1.0, 3.5, 40.0])
def test_beta_with_a_whole_parameter(a: float, b: int) -> None:
    """F is x^a times a polynomial of 1 - x then, and has an exact derivative."""
    x = torch.linspace(0.02, 0.98, 49, dtype=torch.float64, requires_grad=True)
    shape = torch.full_like(x, a, requires_grad=True)
    k = torch.arange(b, dtype=torch.float64)[:, None]
    factor = (torch.lgamma(shape + k) - torch.lgamma(shape) - torch.lgamma(k + 1)).exp()
    value = x**shape * (factor * (1 - x) ** k).sum(0)
    by_a, by_x = torch.autograd.grad(value.sum(), (shape, x))
    want = (-by_a / by_x / (1 - x)).detach()
    got = torch._dirichlet_grad(x.detach().to(DEVICE), shape.detach().to(DEVICE), (shape + b).detach().to(DEVICE))
    # Far above the mean F is 1 but for a few units in the last place, here and in the polynomial.
    certain = ((1 - value) > 1e-8) & (value > 1e-12)
    torch.testing.assert_close(got.cpu()[certain], want[certain], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("a", [0.2, 2.0, 30.0])
@pytest.mark.parametrize("b", [0.15, 4.5, 200.0])
def test_beta(a: float, b: float) -> None:
    x = torch.distributions.Beta(torch.tensor(a), torch.tensor(b)).sample((200,)).clamp(1e-4, 1 - 1e-4)
    shape, total = torch.full_like(x, a), torch.full_like(x, a + b)
    got = torch._dirichlet_grad(*(v.to(DEVICE) for v in (x, shape, total))).cpu()
    torch.testing.assert_close(got, torch._dirichlet_grad(x, shape, total), rtol=5e-3, atol=1e-4)


def test_distributions() -> None:
    for make in (
        lambda a: torch.distributions.Gamma(a, 2.0),
        lambda a: torch.distributions.Dirichlet(a),
        lambda a: torch.distributions.Beta(a, 3.0),
    ):
        a = torch.tensor([0.7, 2.0, 5.0], device=DEVICE, requires_grad=True)
        make(a).rsample((5,)).square().sum().backward()
        assert a.grad is not None and a.grad.isfinite().all()


def test_complex_logcumsumexp() -> None:
    x = torch.randn(3, 9, dtype=torch.complex64) * 3
    x[0, 2] = complex(float("-inf"), 1.0)
    x[1, 0] = x[1, 1]
    check(lambda x: [torch.logcumsumexp(x, d) for d in (0, 1)], x)
