"""Activations against the CPU: values, special values, gradients, dtypes, in-place forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_matches, check, to_device
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.3, -1.5),
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 1.2),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "softshrink": lambda x: F.softshrink(x, 0.4),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": lambda x: F.softplus(x, 2, 3),
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "glu": lambda x: F.glu(x, -1),
    "glu_first": lambda x: F.glu(x, 0),
    "rrelu_eval": lambda x: F.rrelu(x, 0.1, 0.4, training=False),
}


def run_with_gradient(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    weight = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).to(result).reshape(result.shape)
    return (result.detach(), *torch.autograd.grad(result, leaves, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_and_gradient(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for sizes in ((4, 6), (0, 2), (2, 2, 2)):
        x = (torch.randn(sizes) * 3).to(dtype)
        got = run_with_gradient(ACTIVATIONS[name], to_device(x))
        if dtype.itemsize > 2:
            assert_matches(got, run_with_gradient(ACTIVATIONS[name], x))
            continue
        # In half precision the CPU rounds after every step, the device once: the float32 result is the judge.
        value, gradient = run_with_gradient(ACTIVATIONS[name], x.float())
        if name != "tanhshrink":  # x - tanh(x) in two rounded steps cancels
            assert_matches(got[0], value.to(dtype))
        # Some gradients read the rounded output or are composed of rounded steps: a few units of the largest (2).
        assert_matches(got[1], gradient.to(dtype), rtol=0.02, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if "glu" not in n and n != "gelu"])
def test_special_values(name: str) -> None:
    x = torch.tensor([0.0, -0.0, 0.4, -0.4, 3.0, -3.0, 100.0, -100.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
    check(ACTIVATIONS[name], x)


def test_gelu_of_large_values() -> None:
    # The CPU's vector kernel gives inf and NaN at and near +inf; the exact values are x and 0.
    x = torch.tensor([100.0, 3e38, math.inf, -100.0, -3e38])
    assert_matches(F.gelu(to_device(x)), torch.tensor([100.0, 3e38, math.inf, -0.0, -0.0]))


def test_layouts_and_scalars() -> None:
    x = torch.randn(4, 6)
    for window in (lambda t: t.t(), lambda t: t[:, 1:5:2], lambda t: t[1, 2]):
        check(lambda t, window=window: (F.gelu(window(t)), F.silu(window(t)), F.relu(window(t))), x)


@pytest.mark.parametrize(
    "name", ["relu", "hardtanh", "elu", "leaky_relu", "silu", "mish", "hardswish", "threshold", "selu"]
)
def test_inplace(name: str) -> None:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": lambda x: F.relu(x, inplace=True),
        "hardtanh": lambda x: F.hardtanh(x, inplace=True),
        "elu": lambda x: F.elu(x, inplace=True),
        "leaky_relu": lambda x: F.leaky_relu(x, 0.1, inplace=True),
        "silu": lambda x: F.silu(x, inplace=True),
        "mish": lambda x: F.mish(x, inplace=True),
        "hardswish": lambda x: F.hardswish(x, inplace=True),
        "threshold": lambda x: F.threshold(x, 0.1, 3.0, inplace=True),
        "selu": lambda x: F.selu(x, inplace=True),
    }
    check(functions[name], torch.randn(3, 5))

    def through_autograd(x: Tensor) -> tuple[Tensor, ...]:
        return run_with_gradient(lambda leaf: functions[name](leaf * 1.5), x)

    x = torch.randn(3, 5)
    assert_matches(through_autograd(to_device(x)), through_autograd(x))


def test_relu_of_integers() -> None:
    check(F.relu, torch.arange(-3, 4))
    check(lambda x: F.hardtanh(x, -2, 2), torch.arange(-5, 5))


@pytest.mark.parametrize("count", [1, 3])
def test_prelu(count: int) -> None:
    x, weight = torch.randn(2, 3, 4), torch.linspace(0.1, 0.4, count)
    assert_matches(run_with_gradient(F.prelu, *to_device([x, weight])), run_with_gradient(F.prelu, x, weight))


def test_second_derivatives() -> None:
    def second(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        total = (F.silu(x) + F.gelu(x) + torch.tanh(x) + torch.sigmoid(x) + F.softplus(x) + F.mish(x)).sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(10, dtype=torch.float64)
    assert_matches(second(to_device(x)), second(x))
