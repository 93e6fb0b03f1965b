"""Losses against the CPU: values and gradients for every reduction, class weights, ignored and bad targets, CTC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_matches, to_device
from torch import Tensor

REDUCTIONS = ("none", "mean", "sum")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def compare(function: Callable[..., Tensor], x: Tensor, *others: Any, **tolerance: float) -> None:
    """Loss and gradient of `x` on both devices."""

    def run(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        loss = function(x, *others)
        weight = torch.linspace(0.5, 2, loss.numel()).to(loss).reshape(loss.shape)
        return loss.detach(), torch.autograd.grad(loss, x, weight)[0]

    got = run(*to_device([x, *others]))
    assert_matches(got, run(x, *others), **tolerance)


POINTWISE: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": lambda x, t, reduction: F.smooth_l1_loss(x, t, reduction=reduction, beta=0.7),
    "huber": lambda x, t, reduction: F.huber_loss(x, t, reduction=reduction, delta=0.7),
    "soft_margin": lambda x, t, reduction: F.soft_margin_loss(x, t.sign(), reduction=reduction),
    "kl_div": lambda x, t, reduction: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction=reduction),
    "poisson": lambda x, t, reduction: F.poisson_nll_loss(x, t.abs(), reduction=reduction),
    "gaussian": lambda x, t, reduction: F.gaussian_nll_loss(x, t, t.abs() + 0.1, reduction=reduction),
    "hinge": lambda x, t, reduction: F.hinge_embedding_loss(x, t.sign(), reduction=reduction),
    "margin_ranking": lambda x, t, reduction: F.margin_ranking_loss(x, t, t.sign(), 0.3, reduction=reduction),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, reduction: str) -> None:
    function = POINTWISE[name]
    for dtype in (torch.float32, torch.float64):
        x, target = torch.randn(4, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
        compare(lambda x, t: function(x, t, reduction=reduction), x, target)
    if reduction != "mean":
        compare(lambda x, t: function(x, t, reduction=reduction), torch.randn(0, 5), torch.randn(0, 5))


@pytest.mark.parametrize("name", POINTWISE)
def test_mean_of_nothing(name: str) -> None:
    compare(lambda x, t: POINTWISE[name](x, t, reduction="mean"), torch.randn(0, 5), torch.randn(0, 5))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_pointwise_broadcast() -> None:
    compare(F.mse_loss, torch.randn(4, 5), torch.randn(5))
    compare(F.mse_loss, torch.randn(5), torch.randn(4, 5))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction: str) -> None:
    x, target, weight, positive = torch.rand(4, 5), torch.rand(4, 5), torch.rand(5), torch.rand(5) + 0.5
    compare(lambda x, t: F.binary_cross_entropy(x, t, reduction=reduction), x, target)
    compare(lambda x, t, w: F.binary_cross_entropy(x, t, w, reduction=reduction), x, target, weight)
    sure = torch.tensor([0.0, 1.0, 0.0, 1.0])
    compare(lambda x, t: F.binary_cross_entropy(x, t, reduction=reduction), sure, torch.tensor([0.0, 1.0, 1.0, 0.0]))
    logits = torch.randn(4, 5) * 5
    function = F.binary_cross_entropy_with_logits
    compare(lambda x, t: function(x, t, reduction=reduction), logits, target)
    compare(lambda x, t, w, p: function(x, t, w, pos_weight=p, reduction=reduction), logits, target, weight, positive)


def test_binary_cross_entropy_refuses_non_probabilities() -> None:
    x = torch.tensor([0.5, 1.5], device=DEVICE)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(x, torch.zeros(2, device=DEVICE)).cpu()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", [(7, 5), (5,), (3, 5, 2, 4), (3, 5, 4), (0, 5)], ids=str)
def test_negative_log_likelihood(sizes: tuple[int, ...], weighted: bool, reduction: str) -> None:
    target_sizes = sizes[:1] + sizes[2:] if len(sizes) > 1 else ()
    target = torch.randint(0, 5, target_sizes)
    if target.numel() > 2:
        target.view(-1)[1] = -100
    weight = torch.rand(5) + 0.1 if weighted else None
    for function in (F.nll_loss, F.cross_entropy):
        compare(lambda x, t, w, f=function: f(x, t, w, reduction=reduction), torch.randn(sizes), target, weight)


def test_cross_entropy_variants() -> None:
    x, target = torch.randn(6, 5), torch.randint(0, 5, (6,))
    compare(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), x, target)
    compare(lambda x, t: F.cross_entropy(x, t, ignore_index=2), x, target)
    compare(lambda x, t: F.cross_entropy(x, t), x, torch.softmax(torch.randn(6, 5), 1))
    # Both devices round the log-probabilities to bfloat16, and exp(log p) - 1 cancels: two roundings apart.
    half = x.to(torch.bfloat16)
    compare(lambda x, t: F.cross_entropy(x, t, reduction="sum"), half, target, rtol=0.03, atol=4e-3)


def test_everything_ignored() -> None:
    x, target = torch.randn(3, 5), torch.full((3,), -100)
    for reduction in REDUCTIONS:
        compare(lambda x, t, reduction=reduction: F.cross_entropy(x, t, reduction=reduction), x, target)


@pytest.mark.parametrize("bad", [5, -1])
def test_target_out_of_range_raises(bad: int) -> None:
    x = torch.randn(3, 5, device=DEVICE)
    with pytest.raises(IndexError, match="out of bounds"):
        F.nll_loss(x, torch.tensor([0, bad, 1], device=DEVICE)).cpu()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin(p: int, reduction: str) -> None:
    x, target, weight = torch.randn(4, 5), torch.randint(0, 5, (4,)), torch.rand(5)
    function = F.multi_margin_loss
    compare(lambda x, t: function(x, t, p=p, margin=0.7, reduction=reduction), x, target)
    compare(lambda x, t, w: function(x, t, p=p, weight=w, reduction=reduction), x, target, weight)
    # Without a batch PyTorch's metadata has one dim where its CPU kernel has none: compared without it.
    compare(lambda x, t: function(x, t, p=p, reduction=reduction).reshape(()), x[0], target[0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margins(reduction: str) -> None:
    target = torch.tensor([[3, 0, -1, 1], [1, -1, 2, 3], [-1, 0, 1, 2], [0, 1, 2, 3]])
    x = torch.randn(4, 4)
    compare(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x, target)
    # As for multi_margin_loss, the metadata and the CPU differ in the dims of a single sample.
    compare(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction).reshape(()), x[0], target[0])
    compare(lambda x, t: F.multilabel_soft_margin_loss(x, t, reduction=reduction), x, (target > 0).float())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_embedding_losses(reduction: str) -> None:
    a, b, c, sign = torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 6), torch.tensor([1.0, -1.0, 1.0, -1.0])
    compare(lambda a, b, y: F.cosine_embedding_loss(a, b, y, 0.1, reduction=reduction), a, b, sign)
    compare(lambda a, b, c: F.triplet_margin_loss(a, b, c, reduction=reduction), a, b, c)


CTC_CASES: dict[str, tuple[int, int, list[int], list[int], bool]] = {
    # classes, time, target lengths, input lengths, targets in one row
    "padded": (5, 12, [4, 2, 0], [12, 9, 1], False),
    "flat": (5, 12, [4, 2, 1], [12, 9, 5], True),
    "impossible": (4, 6, [5, 3], [6, 2], False),
    "empty": (3, 5, [0, 0], [5, 0], False),
}


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("name", CTC_CASES)
def test_ctc(name: str, zero_infinity: bool) -> None:
    classes, time, target_lengths, input_lengths, flat = CTC_CASES[name]
    batch = len(target_lengths)
    target = torch.randint(1, classes, (sum(target_lengths),) if flat else (batch, max(1, *target_lengths)))
    for dtype in (torch.float32, torch.float64):
        scores = torch.randn(time, batch, classes, dtype=dtype).log_softmax(2)

        def loss(x: Tensor, t: Tensor) -> Tensor:
            return F.ctc_loss(x, t, input_lengths, target_lengths, reduction="none", zero_infinity=zero_infinity)

        compare(loss, scores, target)


def test_ctc_without_batch() -> None:
    scores = torch.randn(5, 4).log_softmax(1)
    compare(lambda x, t: F.ctc_loss(x, t, (5,), (2,)), scores, torch.tensor([1, 2]))


@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
def test_gradient_unscaling(bad: float | None) -> None:
    def unscale(*grads: Tensor) -> tuple[Tensor, ...]:
        found = torch.zeros(1, device=grads[0].device)
        inverse = torch.tensor([0.25], device=grads[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(list(grads), found, inverse)
        return (*grads, found)

    grads = [torch.randn(3, 4), torch.randn(5)]
    if bad is not None:
        grads[1][2] = bad
    want = unscale(*to_device(grads, "cpu"))
    assert_matches(unscale(*to_device(grads)), want)


@pytest.mark.parametrize(("found", "counted"), [(0.0, 0), (0.0, 2), (1.0, 1)])
def test_scale_update(found: float, counted: int) -> None:
    def update(device: str) -> tuple[Tensor, Tensor]:
        scale = torch.tensor([1024.0], device=device)
        tracker = torch.tensor([counted], dtype=torch.int32, device=device)
        torch._amp_update_scale_(scale, tracker, torch.tensor([found], device=device), 2.0, 0.5, 3)
        return scale, tracker

    assert_matches(update(DEVICE), update("cpu"))
