"""Fake quantization, with its gradients and moving averages, as torch.ao.quantization uses it."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, assert_matches, check
from torch import Tensor

aten = torch.ops.aten
QUARTER = 0.25  # levels and ties are exact with such a scale


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(sizes) * 20).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(("scale", "zero_point"), [(0.1, 3), (QUARTER, 0), (3.7, -128)])
def test_per_tensor(dtype: torch.dtype, scale: float, zero_point: int) -> None:
    x = numbers(7, 9, dtype=dtype)
    check(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, scale, zero_point, -128, 127), x)
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127), x)


def test_ties_go_to_even() -> None:
    x = torch.arange(-9, 9) * QUARTER / 2
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, QUARTER, 1, -5, 5), x)


@pytest.mark.parametrize("enabled", [0, 1])
def test_per_tensor_with_tensors(enabled: int) -> None:
    x = numbers(7, 9)
    scale, zero_point = torch.tensor([0.3]), torch.tensor([2], dtype=torch.int32)
    on = torch.tensor([enabled], dtype=torch.uint8)
    op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    check(lambda *a: op(*a, 0, 255), x, scale, zero_point, on)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_per_channel(axis: int, dtype: torch.dtype) -> None:
    x = numbers(3, 4, 3)
    scale, zero_point = torch.rand(3) + 0.05, torch.tensor([-3, 0, 9], dtype=dtype)
    check(lambda *a: aten.fake_quantize_per_channel_affine_cachemask(*a, axis, -20, 19), x, scale, zero_point)


def gradients(function: object, *arguments: Tensor) -> list[Tensor]:
    leaves = [a.detach().requires_grad_() for a in arguments]
    result = function(*leaves)  # type: ignore[operator]
    weights = torch.linspace(-1, 2, result.numel()).reshape(result.shape).to(result.device)
    return [result.detach(), *torch.autograd.grad(result, leaves, weights)]


def test_gradient() -> None:
    check(lambda x: gradients(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.2, 5, 0, 255), x), numbers(7, 9))


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_learnable_per_tensor(factor: float) -> None:
    op = torch._fake_quantize_learnable_per_tensor_affine
    check(
        lambda *a: gradients(lambda x, s, z: op(x, s, z, -20, 30, factor), *a),
        numbers(7, 9),
        torch.tensor([0.37]),
        torch.tensor([2.6]),
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_learnable_per_channel(axis: int) -> None:
    op = torch._fake_quantize_learnable_per_channel_affine
    check(
        lambda *a: gradients(lambda x, s, z: op(x, s, z, axis, -20, 30, 0.5), *a),
        numbers(4, 4, 3),
        torch.rand(4) + 0.1,
        torch.tensor([2.6, -1.2, 0.0, 90.0]),
    )


def observer(rows: int, per_row: bool) -> list[Tensor]:
    """running_min, running_max, scale, zero_point"""
    size = rows if per_row else 1
    low, high = torch.full((size,), float("inf")), torch.full((size,), -float("inf"))
    return [low, high, torch.ones(size), torch.zeros(size, dtype=torch.int32)]


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("observing", "rounding"), [(1, 1), (1, 0), (0, 1)])
def test_moving_average(per_row: bool, symmetric: bool, observing: int, rounding: int) -> None:
    """Three batches: the first sets the extremes, the others move them."""
    state = {device: [s.to(device) for s in observer(4, per_row)] for device in ("cpu", DEVICE)}
    flags = [torch.tensor([v]) for v in (observing, rounding)]
    for batch in range(3):
        x = torch.randn(4, 5) * 3 + batch
        results = {}
        for device, tensors in state.items():
            results[device] = aten._fused_moving_avg_obs_fq_helper(
                x.to(device), *(f.to(device) for f in flags), *tensors, 0.1, -128, 127, 0, per_row, symmetric
            )
        assert_matches(results[DEVICE], results["cpu"])
        assert_matches(state[DEVICE], state["cpu"])


@pytest.mark.parametrize("x", [[0.0, 0.0], [1e-7, 2e-7], [-1e-6, 0.0], [-1e-6, 1e-6], [3.0, 5.0], [-4.0, -2.0]])
def test_parameters_of_narrow_and_one_sided_ranges(x: list[float]) -> None:
    def run(x: Tensor) -> list[Tensor]:
        state = [s.to(x.device) for s in observer(1, False)]
        on = torch.ones(1, dtype=torch.int64, device=x.device)
        return [*aten._fused_moving_avg_obs_fq_helper(x, on, on, *state, 0.1, 0, 255, 0), *state]

    check(run, torch.tensor(x))


def test_module() -> None:
    """The module of torch.ao.quantization, in training."""
    from torch.ao.quantization import FusedMovingAvgObsFakeQuantize

    states = {}
    for device in ("cpu", DEVICE):
        module = FusedMovingAvgObsFakeQuantize().to(device)
        torch.manual_seed(3)
        results = [module(torch.randn(3, 4).to(device)) for _ in range(3)]
        states[device] = [*results, *module.state_dict().values()]
    assert_matches(states[DEVICE], states["cpu"])
