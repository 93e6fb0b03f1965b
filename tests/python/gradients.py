"""Comparison of results and gradients with the CPU, for families that training uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import assert_matches, to_device
from torch.utils._pytree import tree_flatten


def run_with_gradients(function: Callable[..., Any], arguments: list[Any], weights: list[torch.Tensor]) -> Any:
    """Results of `function`, and gradients of its differentiable arguments for fixed weights of the results."""
    result = function(*arguments)
    outputs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = [x for x in tree_flatten(arguments)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    if not weights:
        weights.extend(torch.randn(x.shape, dtype=x.dtype) for x in outputs)
    gradients = torch.autograd.grad(
        outputs, inputs, [to_device(w, x.device) for w, x in zip(weights, outputs, strict=True)]
    )
    return result, gradients


def check_gradients(function: Callable[..., Any], *arguments: Any, **tolerance: float) -> None:
    """Like helpers.check, for the results and all gradients."""
    weights: list[torch.Tensor] = []
    want = run_with_gradients(function, to_device(list(arguments), "cpu"), weights)
    got = run_with_gradients(function, to_device(list(arguments)), weights)
    assert_matches(got, want, **tolerance)


def leaf(*sizes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random numbers that want a gradient. float64 by default: then summation order does not show."""
    return torch.randn(*sizes, dtype=dtype).requires_grad_()
