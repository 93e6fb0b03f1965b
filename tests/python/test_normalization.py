"""Softmax and the norms against the CPU: forward, gradients, running statistics, masks, half precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, check, to_device
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def results_and_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The result of `function` and the gradients of its weighted sum for the floating-point arguments."""

    def run(*arguments: Any) -> list[Tensor]:
        leaves = [
            a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
        ]
        result = function(*leaves)
        weights = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).to(result.dtype).reshape(result.shape)
        wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        grads = torch.autograd.grad(result, wanted, weights.to(result.device))
        return [result.detach(), *grads]

    return run


def check_in_half(function: Callable[..., Any], *arguments: Tensor) -> None:
    """Half precision against float32 arithmetic on the same inputs, rounded at the end.

    The CPU's own half kernels round intermediate values, so that they miss the exact result by more than the
    tolerance near zero.
    """
    run = results_and_gradients(function)
    got = run(*to_device(list(arguments)))
    want = run(*[a.float() for a in arguments])
    for g, w in zip(got, want, strict=True):
        # A gradient is a sum over rounded results, hence an absolute tolerance of the size of one rounding.
        torch.testing.assert_close(g.cpu(), w.to(g.dtype), rtol=1.6e-2, atol=2e-2)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax, F.softmin], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(function: Callable[..., Any], dtype: torch.dtype) -> None:
    for sizes, dim in (((4, 7), 1), ((3, 5, 2), 1), ((), 0), ((2, 0), 1)):
        x = (torch.randn(sizes, dtype=torch.float64) * 3).to(dtype)
        if dtype.itemsize == 2:
            check_in_half(lambda x, d=dim: function(x, d), x)
        else:
            check(results_and_gradients(lambda x, d=dim: function(x, d)), x)


def test_softmax_of_extreme_rows() -> None:
    inf = math.inf
    x = torch.tensor([[1e4, 1e4, -1e4], [inf, 0, 1], [-inf, -inf, -inf], [math.nan, 0, 1], [-inf, 0, -inf]])
    check(lambda x: F.softmax(x, 1), x)
    check(lambda x: F.log_softmax(x, 1), x)
    check(lambda x: torch.ops.aten._safe_softmax(x, 1), x)


def test_softmax_dtype_argument() -> None:
    check(lambda x: F.softmax(x, -1, dtype=torch.float32), torch.randn(3, 4).bfloat16())
    check(lambda x: F.softmax(x, -1, dtype=torch.float64), torch.randint(0, 5, (3, 4)))


def test_masked_softmax() -> None:
    x = torch.randn(2, 3, 4, 4)
    key_mask = torch.tensor([[False, True, False, False], [False, False, True, True]])
    square = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    check(lambda x, m: torch._masked_softmax(x, m, 3, 0), x, square)
    check(lambda x, m: torch._masked_softmax(x, m, 3, 1), x, key_mask)
    check(lambda x, m: torch._masked_softmax(x, m, 1, 2), x, torch.rand(2, 3, 4, 4) > 0.7)


@pytest.mark.parametrize("affine", ["both", "weight", "none"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm(affine: str, dtype: torch.dtype) -> None:
    x = (torch.randn(2, 3, 8, dtype=torch.float64) * 2 + 5).to(dtype)
    count = {"both": 2, "weight": 1, "none": 0}[affine]
    parameters = [torch.rand(8).to(dtype) + 0.5, torch.randn(8).to(dtype)][:count]

    def layer_norm(x: Tensor, *affine: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), *affine)

    if dtype.itemsize == 2:
        check_in_half(layer_norm, x, *parameters)
    else:
        # float32: the gradient of x subtracts two means that nearly cancel.
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
        check(results_and_gradients(layer_norm), x, *parameters, **tolerance)


def test_layer_norm_shapes() -> None:
    check(lambda x: F.layer_norm(x, (3, 4)), torch.randn(2, 3, 4))
    check(lambda x: F.layer_norm(x, (4,)), torch.randn(0, 4))
    check(lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5), torch.randn(2, 3, 4))
    check(lambda x: F.layer_norm(x.transpose(1, 2), (3,)), torch.randn(2, 3, 4))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.layer_norm(torch.ones(2, 3, device=DEVICE), (4,))


def test_layer_norm_far_from_zero() -> None:
    # The variance must not be a difference of squares: at 3000 float32 would lose it. The judge is float64, and float32
    # rounds the mean of numbers near 3000 to 2.4e-4, which is how far a result may be off.
    x = torch.randn(4, 64) + 3000
    got = F.layer_norm(to_device(x), (64,)).cpu()
    torch.testing.assert_close(got, F.layer_norm(x.double(), (64,)).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 4, 8).to(dtype), (torch.rand(8) + 0.5).to(dtype)
    if dtype.itemsize == 2:
        check_in_half(lambda x, w: F.rms_norm(x, (8,), w, 1e-6), x, weight)
        return
    check(results_and_gradients(lambda x, w: F.rms_norm(x, (8,), w)), x, weight)
    check(results_and_gradients(lambda x: F.rms_norm(x, (4, 8), eps=1e-3)), x)
    check(lambda x: F.rms_norm(x * 1e-6, (8,)), x)  # small enough for the default eps to show


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(affine: bool) -> None:
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    parameters = [torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)] if affine else []
    for groups in (1, 2, 6):
        check(results_and_gradients(lambda x, *p, g=groups: F.group_norm(x, g, *p)), x, *parameters)
    check(lambda x: F.group_norm(x, 3), torch.randn(2, 6))


def test_instance_norm() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    check(results_and_gradients(lambda x, w, b: F.instance_norm(x, weight=w, bias=b)), x, x[0, :, 0, 0], x[1, :, 0, 0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sizes", [(6, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)], ids=str)
def test_batch_norm(training: bool, sizes: tuple[int, ...]) -> None:
    def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> list[Tensor]:
        leaves = [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
        y = F.batch_norm(x, mean, var, weight, bias, training=training, momentum=0.3)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        grads = torch.autograd.grad(y, leaves, weights.to(y.device))
        return [y.detach(), *grads, mean, var]

    double = {"dtype": torch.float64}
    check(batch_norm, torch.randn(sizes, **double), *(torch.rand(3, **double) + 0.5 for _ in range(4)))


def test_batch_norm_without_parameters() -> None:
    check(lambda x: F.batch_norm(x, None, None, training=True), torch.randn(4, 3))
    check(lambda x, m, v: F.batch_norm(x, m, v), torch.randn(4, 3), torch.randn(3), torch.rand(3) + 0.5)


def test_batch_norm_module_updates_its_statistics() -> None:
    batches = [torch.randn(8, 3, 4) for _ in range(3)]

    def train(device: str) -> list[Tensor]:
        torch.manual_seed(1)
        module = torch.nn.BatchNorm1d(3, momentum=None).to(device)
        outputs = [module(batch.to(device)) for batch in batches]
        outputs[-1].sum().backward()
        module.eval()
        return [*outputs, module(batches[0].to(device)), module.running_mean, module.running_var]

    for got, want in zip(train(DEVICE), train("cpu"), strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


def test_functional_batch_norms() -> None:
    x, mean, var, weight = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3) + 0.5, torch.rand(3)
    aten = torch.ops.aten

    def legit(x: Tensor, w: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return aten._native_batch_norm_legit(x, w, None, m, v, True, 0.1, 1e-5)

    # In evaluation the saved statistics mean nothing: PyTorch's meta kernel gives them C elements, the CPU none.
    def evaluated(x: Tensor, w: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return aten._native_batch_norm_legit(x, w, None, m, v, False, 0.1, 1e-5)[0]

    check(legit, x, weight, mean, var)
    check(evaluated, x, weight, mean, var)
    check(lambda x, w: aten._native_batch_norm_legit.no_stats(x, w, None, True, 0.1, 1e-5), x, weight)
    check(lambda x, w, m, v: aten._batch_norm_with_update(x, w, w, m, v, 0.1, 1e-5), x, weight, mean, var)
    check(lambda x, w, m, v: aten._batch_norm_no_update(x, w, w, m, v, 0.1, 1e-5)[0], x, weight, mean, var)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, True), (True, True, False)], ids=str)
def test_only_the_wanted_gradients(mask: tuple[bool, bool, bool]) -> None:
    x, grad, weight = torch.randn(4, 6), torch.randn(4, 6), torch.rand(6)

    def wanted(results: tuple[Tensor | None, ...]) -> list[Tensor]:
        return [result for result, want in zip(results, mask, strict=True) if want and result is not None]

    def layer(x: Tensor, grad: Tensor, weight: Tensor) -> list[Tensor]:
        _, mean, rstd = torch.native_layer_norm(x, (6,), weight, weight, 1e-5)
        return wanted(torch.ops.aten.native_layer_norm_backward(grad, x, (6,), mean, rstd, weight, weight, mask))

    def batch(x: Tensor, grad: Tensor, weight: Tensor) -> list[Tensor]:
        _, mean, invstd = torch.native_batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5)
        return wanted(
            torch.ops.aten.native_batch_norm_backward(grad, x, weight, None, None, mean, invstd, True, 1e-5, mask)
        )

    def group(x: Tensor, grad: Tensor, weight: Tensor) -> list[Tensor]:
        _, mean, rstd = torch.native_group_norm(x, weight, weight, 4, 6, 1, 2, 1e-5)
        return wanted(torch.ops.aten.native_group_norm_backward(grad, x, mean, rstd, weight, 4, 6, 1, 2, mask))

    for function in (layer, batch, group):
        check(function, x, grad, weight)


@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm(dim: int) -> None:
    v = torch.randn(4, 3, dtype=torch.float64)
    g = torch.rand((4, 1) if dim == 0 else (1, 3), dtype=torch.float64)
    check(results_and_gradients(lambda v, g: torch._weight_norm(v, g, dim)), v, g)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward_of_one_image_with_a_transposed_gradient(training: bool) -> None:
    # PyTorch's CPU kernel mistakes the layout of such a gradient (torch 2.13): it is compared with a contiguous one.
    x, weight = torch.randn(1, 8, 5, 5), torch.rand(8)
    mean, scale = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0).add(1e-5).rsqrt()
    statistics = (torch.zeros(8), torch.ones(8), mean, scale, training, 1e-5, [True, True, True])
    grad = torch.randn(1, 25, 8).transpose(1, 2).unflatten(2, (5, 5))
    assert not grad.is_contiguous()
    want = torch.ops.aten.native_batch_norm_backward(grad.contiguous(), x, weight, *statistics)
    on_device = [v.to(DEVICE) if isinstance(v, torch.Tensor) else v for v in (x, weight, *statistics)]
    transposed = torch.empty_strided(grad.shape, grad.stride(), device=DEVICE).copy_(grad)
    assert transposed.stride() == grad.stride()
    got = torch.ops.aten.native_batch_norm_backward(transposed, *on_device)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w)
