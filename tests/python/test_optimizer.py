"""Fused optimizer steps, the per-tensor loops of the foreach forms, and gradient clipping, against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import DEVICE, each_mode  # noqa: F401
from torch import Tensor

SHAPES = ((4, 3), (5,), ())

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam_decay": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adam_amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adam_maximize": (torch.optim.Adam, {"lr": 0.01, "maximize": True, "betas": (0.5, 0.9)}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw_tensor_lr": (torch.optim.AdamW, {"lr": torch.tensor(0.01)}),
    "adamw_amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
}


def parameters(device: str, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype).to(device)) for s in SHAPES]


def trained(optimizer: torch.optim.Optimizer, weights: list[torch.nn.Parameter], steps: int = 4) -> list[torch.Tensor]:
    """Parameters and states after some steps with given gradients."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype).to(weight.device)
        optimizer.step()
    states = [v for w in weights for v in optimizer.state[w].values() if isinstance(v, torch.Tensor)]
    return [w.detach() for w in weights] + states


def compare(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu())


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused(name: str, dtype: torch.dtype) -> None:
    kind, options = OPTIMIZERS[name]
    results = []
    for device in ("cpu", DEVICE):
        weights = parameters(device, dtype)
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        results.append(trained(kind(weights, fused=True, **moved), weights))
    compare(results[1], results[0])


@pytest.mark.parametrize("name", ("adam", "adamw", "sgd_momentum", "adagrad"))
@pytest.mark.parametrize("foreach", (False, True))
def test_unfused(name: str, foreach: bool) -> None:
    kind, options = OPTIMIZERS[name]
    results = []
    for device in ("cpu", DEVICE):
        weights = parameters(device, torch.float32)
        results.append(trained(kind(weights, foreach=foreach, **options), weights, steps=3))
    compare(results[1], results[0])


def test_fused_half() -> None:
    """Parameters and states of bfloat16: computed in float32, rounded once a step."""
    results = []
    for device in ("cpu", DEVICE):
        weights = parameters(device, torch.bfloat16)
        results.append(trained(torch.optim.AdamW(weights, lr=0.01, fused=True), weights, steps=2))
    compare(results[1], results[0])


@pytest.mark.parametrize("overflow", (False, True))
@pytest.mark.parametrize("name", ("adamw", "sgd_momentum"))
def test_gradient_scaler(name: str, overflow: bool) -> None:
    kind, options = OPTIMIZERS[name]
    results = []
    for device in ("cpu", DEVICE):
        weights = parameters(device, torch.float32)
        optimizer = kind(weights, fused=True, **options)
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        for step in range(3):
            loss = sum((w**2).sum() for w in weights)
            if overflow and step == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append([w.detach() for w in weights] + [torch.tensor(scaler.get_scale())])
    compare(results[1], results[0])


def test_learning_rate_does_not_compile_again() -> None:
    weights = parameters(DEVICE, torch.float32)
    optimizer = torch.optim.AdamW(weights, lr=0.01, fused=True)
    trained(optimizer, weights, steps=1)
    reference = parameters("cpu", torch.float32)
    other = torch.optim.AdamW(reference, lr=0.01, fused=True)
    trained(other, reference, steps=1)
    for rate in (0.02, 0.005, 0.001):
        optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = rate
        compare(trained(optimizer, weights, steps=1), trained(other, reference, steps=1))


@pytest.mark.parametrize("norm", (2.0, 1.0, float("inf")))
@pytest.mark.parametrize("foreach", (False, True))
def test_clip_grad_norm(norm: float, foreach: bool) -> None:
    results = []
    for device in ("cpu", DEVICE):
        weights = parameters(device, torch.float32)
        for weight in weights:
            weight.grad = weight.detach() * 3
        total = torch.nn.utils.clip_grad_norm_(weights, 1.0, norm_type=norm, foreach=foreach)
        results.append([total] + [w.grad for w in weights])
    compare(results[1], results[0])


@pytest.mark.usefixtures("each_mode")
def test_fused_over_views_of_one_buffer() -> None:
    """Flat parameters: every written tensor is a window of one storage."""

    def train(device: str) -> list[Tensor]:
        flat = torch.arange(24.0).to(device)
        weights = [flat[:6].view(2, 3), flat[6:16], flat[16:]]
        state = torch.zeros(24).to(device)
        grads = [torch.full_like(w, 0.5 + i) for i, w in enumerate(weights)]
        moments = [state[:6].view(2, 3), state[6:16], state[16:]]
        squares = [torch.zeros_like(w) for w in weights]
        steps = [torch.tensor(1.0).to(device) for _ in weights]
        for _ in range(2):
            torch._fused_adamw_(
                weights, grads, moments, squares, [], steps, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.01,
                eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
        return [flat, state, *squares]

    for got, want in zip(train(DEVICE), train("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want)
