"""Resizing and grid sampling with gradients, against the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from gradients import check_gradients, leaf
from helpers import DEVICE, check
from torch.nn import functional as F

NEAREST = ("nearest", "nearest-exact")
SMOOTH = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
SIZES = (5, 6, 4)
TARGETS: tuple[dict[str, Any], ...] = (
    {"scale_factor": 2},
    {"scale_factor": 1.7},
    {"scale_factor": 0.6},
    {"size": 9},
    {"size": 3},
    {"size": 1},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
)


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("spatial", (1, 2, 3))
@pytest.mark.parametrize("target", TARGETS)
def test_nearest(mode: str, spatial: int, target: dict[str, Any]) -> None:
    check_gradients(lambda x: F.interpolate(x, mode=mode, **target), leaf(2, 3, *SIZES[:spatial], dtype=torch.float32))


@pytest.mark.parametrize("mode", SMOOTH)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("align_corners", (False, True))
def test_smooth(mode: str, target: dict[str, Any], align_corners: bool) -> None:
    x = leaf(2, 3, *SIZES[: SMOOTH[mode]])
    check_gradients(lambda x: F.interpolate(x, mode=mode, align_corners=align_corners, **target), x)


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
@pytest.mark.parametrize("size", [(3, 7), (1, 1), (12, 2), (5, 6), (20, 30)])
@pytest.mark.parametrize("align_corners", (False, True))
def test_antialias(mode: str, size: tuple[int, int], align_corners: bool) -> None:
    x = leaf(2, 3, 11, 14)
    check_gradients(lambda x: F.interpolate(x, size, mode=mode, antialias=True, align_corners=align_corners), x)


@pytest.mark.parametrize("mode", ("nearest", "nearest-exact", "bilinear", "bicubic"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_dtypes(mode: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 9, 13).to(dtype)
    # Weights near 0 and 1 come from coordinates whose last bit depends on fused multiply-add.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}
    for size in ((18, 26), (5, 31), (7, 4)):
        check(lambda x, size=size: F.interpolate(x, size, mode=mode), x, **tolerance)


def test_every_small_nearest_size() -> None:
    x = torch.arange(13.0).reshape(1, 1, 13)
    for out, mode in itertools.product(range(1, 40, 3), NEAREST):
        check(lambda x, out=out, mode=mode: F.interpolate(x, out, mode=mode), x)


def test_bytes_and_layouts() -> None:
    check(lambda x: F.interpolate(x, (5, 9), mode="nearest"), torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8))
    x = leaf(2, 4, 6, 5)
    check_gradients(lambda x: F.interpolate(x.contiguous(memory_format=torch.channels_last), scale_factor=2), x)
    check_gradients(lambda x: F.interpolate(x.transpose(2, 3), (7, 4), mode="bilinear"), x)


# ---- grid sampling


def grid_for(batch: int, *sizes: int) -> torch.Tensor:
    """Coordinates inside, at the border of and far outside the image."""
    return (torch.rand(batch, *sizes, len(sizes), dtype=torch.float64) * 3 - 1.5).requires_grad_()


@pytest.mark.parametrize("mode", ("bilinear", "nearest", "bicubic"))
@pytest.mark.parametrize("padding", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("align_corners", (False, True))
def test_grid_2d(mode: str, padding: str, align_corners: bool) -> None:
    check_gradients(lambda x, g: F.grid_sample(x, g, mode, padding, align_corners), leaf(2, 3, 5, 6), grid_for(2, 4, 7))


@pytest.mark.parametrize("mode", ("bilinear", "nearest"))
@pytest.mark.parametrize("padding", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("align_corners", (False, True))
def test_grid_3d(mode: str, padding: str, align_corners: bool) -> None:
    check_gradients(
        lambda x, g: F.grid_sample(x, g, mode, padding, align_corners), leaf(2, 3, 4, 5, 6), grid_for(2, 3, 4, 5)
    )


def test_grid_edges() -> None:
    exact = torch.tensor([[[[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [-1.0, 1.0]]]], dtype=torch.float64)
    for padding, align_corners in itertools.product(("zeros", "border", "reflection"), (False, True)):
        check(
            lambda x, g, p=padding, a=align_corners: F.grid_sample(x, g, "bilinear", p, a),
            leaf(1, 2, 4, 4).detach(),
            exact,
        )
    check(lambda x, g: F.grid_sample(x, g, align_corners=False), torch.randn(2, 3, 4, 4), torch.zeros(2, 0, 5, 2))
    theta = torch.tensor([[[0.8, 0.1, 0.2], [-0.1, 1.1, 0.0]]], dtype=torch.float64)
    check_gradients(
        lambda x, t: F.grid_sample(x, F.affine_grid(t, [1, 2, 6, 6], align_corners=False), align_corners=False),
        leaf(1, 2, 5, 5),
        theta.requires_grad_(),
    )
    with pytest.raises(RuntimeError):
        F.grid_sample(torch.randn(1, 1, 4, 4, device=DEVICE), torch.zeros(2, 3, 3, 2, device=DEVICE))


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
@pytest.mark.parametrize("antialias", (False, True))
@pytest.mark.parametrize("channels", (3, 5))
def test_bytes(mode: str, antialias: bool, channels: int) -> None:
    """Fixed-point weights and a rounding for each axis, as on the CPU: the same bytes."""
    x = torch.randint(0, 256, (2, channels, 13, 9), dtype=torch.uint8)
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode, antialias=antialias), x)
    for size, align_corners in itertools.product(((5, 20), (31, 4), (13, 9)), (False, True)):
        options = {"mode": mode, "antialias": antialias, "align_corners": align_corners}
        check(lambda x, size=size, options=options: F.interpolate(x, size, **options), x)
    y = x.to(memory_format=torch.channels_last)[:, :, ::2]
    check(lambda x: F.interpolate(x, (20, 21), mode=mode, antialias=antialias), y)
