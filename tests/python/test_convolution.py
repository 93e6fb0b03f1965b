"""Convolutions of 1 to 3 dims, plain and transposed, with gradients, against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients import check_gradients, leaf
from helpers import DEVICE, assert_matches, check
from torch.nn import functional as F

PLAIN = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2, "padding": 2},
    {"stride": 3, "padding": 2, "dilation": 2},
    {"groups": 2},
    {"groups": 4, "stride": 2, "padding": 1},
)


@pytest.mark.parametrize("spatial", (1, 2, 3))
@pytest.mark.parametrize("options", OPTIONS)
def test_plain(spatial: int, options: dict[str, Any]) -> None:
    sizes = (9, 8, 7)[:spatial]
    weight = leaf(8, 4 // options.get("groups", 1), *(3, 2, 3)[:spatial])
    check_gradients(lambda x, w, b: PLAIN[spatial - 1](x, w, b, **options), leaf(2, 4, *sizes), weight, leaf(8))


@pytest.mark.parametrize("spatial", (1, 2, 3))
@pytest.mark.parametrize("options", (*OPTIONS, {"stride": 3, "output_padding": 2}, {"padding": 4, "dilation": 2}))
def test_transposed(spatial: int, options: dict[str, Any]) -> None:
    sizes = (7, 6, 5)[:spatial]
    weight = leaf(4, 8 // options.get("groups", 1), *(3, 4, 3)[:spatial])
    check_gradients(lambda x, w, b: TRANSPOSED[spatial - 1](x, w, b, **options), leaf(2, 4, *sizes), weight, leaf(8))


def test_different_options_per_dim() -> None:
    options = {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}
    check_gradients(lambda x, w: F.conv2d(x, w, **options), leaf(2, 3, 9, 8), leaf(5, 3, 3, 2))
    check_gradients(lambda x, w: F.conv2d(x, w, padding="same"), leaf(2, 3, 9, 8), leaf(5, 3, 3, 4))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_dtypes(dtype: torch.dtype) -> None:
    """Against float64: the CPU rounds some narrow convolutions at every step."""
    x, w, b = torch.randn(2, 8, 9, 9, dtype=dtype), torch.randn(6, 8, 3, 3, dtype=dtype), torch.randn(6, dtype=dtype)
    want = F.conv2d(x.double(), w.double(), b.double(), padding=1).to(dtype)
    got = F.conv2d(x.to(DEVICE), w.to(DEVICE), b.to(DEVICE), padding=1)
    # float32: sums of 72 terms of size 1.
    assert_matches(got, want, **({"rtol": 1.3e-6, "atol": 2e-5} if dtype == torch.float32 else {}))


def test_integers_are_exact() -> None:
    check(F.conv2d, torch.randint(-50, 50, (2, 3, 6, 6)), torch.randint(-50, 50, (4, 3, 3, 3)))


def test_layouts_and_views() -> None:
    x, w = leaf(2, 8, 6, 7), leaf(4, 8, 3, 3)
    check_gradients(lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w), x, w)
    check_gradients(lambda x, w: F.conv2d(x.transpose(2, 3)[:, :, 1:], w.flip(2)), x, w)
    check_gradients(lambda x, w: F.conv2d(x[:, ::2], w[:, ::2]), x, w)


def test_only_some_gradients() -> None:
    x, w, b = torch.randn(2, 4, 6, 6).double(), leaf(3, 4, 3, 3), leaf(3)
    check_gradients(F.conv2d, x, w, b)
    check_gradients(F.conv2d, x.requires_grad_(), w.detach(), b.detach())
    check_gradients(F.conv2d, x.detach(), w.detach(), b)


def test_empty_batch_and_unbatched() -> None:
    check_gradients(F.conv2d, leaf(0, 3, 6, 6), leaf(4, 3, 3, 3), leaf(4))
    check_gradients(F.conv2d, leaf(3, 6, 6), leaf(4, 3, 3, 3), leaf(4))
    check_gradients(F.conv_transpose2d, leaf(0, 3, 6, 6), leaf(3, 4, 3, 3), leaf(4))


def test_second_derivatives() -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(F.conv2d(x, w, stride=2, padding=1).square().sum(), x, create_graph=True)
        return gradient.square().sum()

    check_gradients(penalty, leaf(2, 3, 6, 6), leaf(4, 3, 3, 3))


def test_wrong_sizes_are_refused() -> None:
    x = torch.randn(2, 3, 6, 6, device=DEVICE)
    with pytest.raises(RuntimeError):
        F.conv2d(x, torch.randn(4, 5, 3, 3, device=DEVICE))
    with pytest.raises(RuntimeError):
        F.conv2d(x, torch.randn(4, 3, 9, 9, device=DEVICE))
