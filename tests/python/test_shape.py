"""Joining, repeating, rearranging and padding against the CPU, with the gradients that training needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import check
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def values(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(sizes).numel()
    return ((torch.arange(count) * 7 % 11) - 4).reshape(sizes).to(dtype)


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda x: torch.cat([x, x, x[:1]], 0),
    "cat_last": lambda x: torch.cat([x, x], -1),
    "cat_with_empty": lambda x: torch.cat([x.new_empty(0), x], 1),
    "stack": lambda x: torch.stack([x, x], 1),
    "stack_last": lambda x: torch.stack([x, x], -1),
    "hstack": lambda x: torch.hstack([x, x]),
    "block_diag": lambda x: torch.block_diag(x[0], x[0, 0], x[0, 0, 0], x[1]),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "repeat_zero": lambda x: x.repeat(1, 0, 2),
    "tile": lambda x: torch.tile(x, (2,)),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "flip": lambda x: x.flip(0, -1),
    "flip_none": lambda x: x.flip(()),
    "fliplr": lambda x: x.fliplr(),
    "roll": lambda x: x.roll((1, -2), (0, 2)),
    "roll_flat": lambda x: x.roll(5),
    "roll_far": lambda x: x.roll(-17, 1),
    "rot90": lambda x: torch.rot90(x, 1, (1, 2)),
    "tril": lambda x: x.tril(),
    "tril_far": lambda x: x.tril(-100),
    "triu": lambda x: x.triu(1),
    "triu_far": lambda x: x.triu(-100),
    "diag_embed": lambda x: torch.diag_embed(x),
    "diag_embed_offset": lambda x: torch.diag_embed(x, -2, 0, 2),
    "diag_embed_above": lambda x: torch.diag_embed(x, 1, -1, 1),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, :3, 0].contiguous(), 1, 1, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[0] * 0 + x[1], 0, -1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2], 1, 1, 3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "pad_crop": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "movedim": lambda x: x.movedim(0, -1).contiguous(),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str, dtype: torch.dtype) -> None:
    check(MOVES[name], values(2, 3, 4, dtype=dtype))


@pytest.mark.parametrize("name", ["cat", "stack", "repeat", "flip", "roll", "roll_flat", "tril", "diag_embed", "pad"])
def test_moves_of_windows(name: str) -> None:
    check(lambda x: MOVES[name](x.transpose(0, 2)[1:, :, :]), values(4, 3, 5))


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("name", ["cat", "stack", "flip", "roll_flat", "roll", "tril", "diag_embed", "pad", "tile"])
def test_moves_of_nothing(name: str, sizes: tuple[int, ...]) -> None:
    check(MOVES[name], values(*sizes))


def test_moves_of_scalars() -> None:
    x = torch.tensor(3.0)
    check(lambda a: torch.stack([a, a]), x)
    check(lambda a: a.flip(()), x)
    check(lambda a: a.roll(1), x)
    check(lambda a: a.repeat(2, 3), x)


def test_cat_promotes() -> None:
    check(lambda a, b, c: torch.cat([a, b, c]), values(2), values(2, dtype=torch.int64), values(2, dtype=torch.float64))
    check(lambda a, b: torch.stack([a, b]), values(2, dtype=torch.bool), values(2, dtype=torch.int32))


def test_cat_of_channels_last() -> None:
    image = values(2, 3, 4, 4).to(memory_format=torch.channels_last)
    check(lambda a: torch.cat([a, a], 1), image, strides=True)


def test_out_forms() -> None:
    def into(a: Tensor) -> list[Tensor]:
        joined, lower, upper = a.new_empty(0), a.new_empty(a.shape), a.new_empty(a.shape)
        torch.cat([a, a], out=joined)
        torch.tril(a, out=lower)
        torch.triu(a, out=upper)
        return [joined, lower, upper, a.clone().tril_(1), a.clone().triu_(-1)]

    check(into, values(3, 4))


PADS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "1d": ((2, 3, 5), (2, 3)),
    "1d_unbatched": ((3, 5), (0, 4)),
    "2d": ((2, 3, 5, 4), (1, 2, 3, 0)),
    "2d_unbatched": ((3, 5, 4), (3, 3, 1, 1)),
    "3d": ((2, 3, 4, 5, 4), (1, 2, 3, 0, 2, 1)),
    "1d_crop": ((2, 3, 5), (-1, 2)),
    "nothing": ((0, 3, 5), (2, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("name", PADS)
def test_padding_with_gradients(name: str, mode: str, dtype: torch.dtype) -> None:
    sizes, padding = PADS[name]

    def padded(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = F.pad(x, padding, mode)
        weight = (torch.arange(y.numel(), device=x.device) % 5).reshape(y.shape).to(dtype)
        return y, torch.autograd.grad(y, x, weight)[0]

    check(padded, values(*sizes, dtype=dtype))


@pytest.mark.parametrize("fill", [0, 2.5, True])
def test_constant_padding(fill: float) -> None:
    check(lambda x: F.pad(x, (1, 1, 2, 0), value=fill), values(2, 3, 4))
    check(lambda x: F.pad(x, (1, 1), "circular"), values(2, 3, 4))


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"), [(2, 1, 0, 1), ((3, 2), (1, 2), (1, 0), (2, 1)), (3, 2, 2, 3)]
)
def test_patches_with_gradients(kernel: object, dilation: object, padding: object, stride: object) -> None:
    def patched(x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        columns = F.unfold(x, kernel, dilation, padding, stride)
        image = F.fold(columns, x.shape[-2:], kernel, dilation, padding, stride)
        return columns, image, torch.autograd.grad(image.square().sum(), x)[0]

    check(patched, values(2, 3, 7, 6))
    check(patched, values(3, 7, 6))


# The last window overlaps more often than one addition per element is worth.
@pytest.mark.parametrize(("size", "step"), [(1, 1), (3, 1), (3, 2), (2, 5), (40, 3), (50, 1)])
@pytest.mark.parametrize("dim", [0, 1])
def test_unfold_with_gradients(size: int, step: int, dim: int) -> None:
    def windows(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = x.unfold(dim, size, step)
        weight = (torch.arange(y.numel(), device=x.device) % 5).reshape(y.shape).to(x.dtype)
        return y, torch.autograd.grad(y, x, weight)[0]

    check(windows, values(60, 3) if dim == 0 else values(2, 60, 2))


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "select": lambda x: x[1] * 2,
    "slice": lambda x: x[:, 1:3:2] * 2,
    "diagonal": lambda x: x.diagonal(1, 0, 2) * 2,
    "diagonal_below": lambda x: x.diagonal(-1, 1, 2) * 2,
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(2, 4, 3, 2), 2) * 2,
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.reshape(1, 4, 12), 2) * 2,
    "channel_shuffle": lambda x: torch.channel_shuffle(x.reshape(2, 6, 4), 3) * 2,
    "cat": lambda x: torch.cat([x, x * 2], 1) * 3,
    "repeat": lambda x: x.repeat(2, 1, 2) * 2,
    "roll": lambda x: x.roll(1, 0) * x,
    "tril": lambda x: x.tril() * x,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = GRADIENTS[name](x)
        weight = (torch.arange(y.numel(), device=x.device) % 5).reshape(y.shape).to(x.dtype)
        return y, torch.autograd.grad(y, x, weight)[0]

    check(both, values(2, 4, 6))


def test_wrong_arguments_raise_as_on_the_cpu() -> None:
    x = values(2, 3).to("tpu")
    with pytest.raises(RuntimeError, match="Sizes of tensors must match except in dimension 0"):
        torch.cat([x, x.t()])
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.flip(2)
    with pytest.raises(RuntimeError, match="Padding size should be less than"):
        F.pad(x[None], (3, 0), "reflect")
