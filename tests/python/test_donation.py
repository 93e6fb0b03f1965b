"""Donation: a small write into a large base must not copy it, and nothing anybody can still see is given away."""

from __future__ import annotations

import pytest
import torch
import torch_tpu._C as engine
from helpers import DEVICE, assert_matches, each_mode  # noqa: F401
from torch import Tensor

pytestmark = pytest.mark.usefixtures("each_mode")


def donated_by(function) -> int:
    """How many buffers the engine gave to programs while `function` ran to its end on the device."""
    torch.tpu.synchronize()
    before = engine._donation_stats()["donated"]
    function()
    torch.tpu.synchronize()
    return engine._donation_stats()["donated"] - before


def settled(*sizes: int) -> Tensor:
    """A tensor whose value is a finished buffer that nothing else refers to."""
    x = torch.zeros(*sizes, device=DEVICE)
    x.add_(1)
    torch.tpu.synchronize()
    return x


def test_write_into_a_slice_donates_its_base() -> None:
    x = settled(1 << 20)

    def write() -> None:
        x[64:128] = 2.0

    assert donated_by(write) == 1
    assert x.sum().item() == (1 << 20) + 64


def test_inplace_update_donates() -> None:
    x, y = settled(1 << 16), settled(1 << 16)

    def update() -> None:
        x.add_(y)

    assert donated_by(update) == 1
    assert x[0].item() == 2 and y[0].item() == 1


def test_optimizer_step_donates_weights_and_state() -> None:
    weights = [settled(256, 256).requires_grad_() for _ in range(3)]
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=True)
    for w in weights:
        w.grad = torch.ones_like(w)
    optimizer.step()
    # Weight, two moments and the step count of each parameter; small ones may be left alone.
    assert donated_by(optimizer.step) >= 9


def test_out_of_place_result_leaves_its_inputs() -> None:
    x = settled(1 << 16)
    y = None

    def compute() -> None:
        nonlocal y
        y = x + 1

    assert donated_by(compute) == 0
    assert x[0].item() == 1 and y[0].item() == 2


def test_value_shared_by_a_saved_tensor_is_kept() -> None:
    """exp saves its result; writing to a clone's base may not disturb what backward reads."""
    x = settled(1 << 10).requires_grad_()
    y = x.exp()
    z = y.detach().clone()
    z.zero_()
    y.sum().backward()
    assert torch.allclose(x.grad, torch.full_like(x, torch.e))


def test_value_used_twice_in_a_call() -> None:
    x = settled(512)
    x.add_(x)
    x.mul_(x).sub_(x * 0.5)
    assert_matches(x, torch.full((512,), 2.0))


def test_pending_reader_sees_the_old_value() -> None:
    """A recorded read comes before a recorded write, also when the write takes the buffer."""
    x = settled(1 << 12)
    old = x + 0
    view_sum = x[:10].sum()
    x[5:] = 7
    newer = x * 1
    x.zero_()
    assert_matches(
        [old, view_sum, newer[4:6], x[:2]],
        [torch.ones(1 << 12), torch.tensor(10.0), torch.tensor([1.0, 7.0]), torch.zeros(2)],
    )


def test_exported_buffer_is_never_donated() -> None:
    x = settled(256)
    exported = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert exported.sum().item() == 256
    x.mul_(5)
    torch.tpu.synchronize()
    # DLPack shares memory or is a copy; either way the first reader's numbers stay defined.
    assert exported.sum().item() in (256, 1280)


def test_failed_call_keeps_its_operands() -> None:
    x = settled(16)
    with pytest.raises(RuntimeError):
        x.add_(torch.ones(3, device=DEVICE))
    assert x.sum().item() == 16


def test_growing_cache_written_by_position() -> None:
    """The decoding pattern: one row a step into a preallocated cache, offsets at run time."""
    cache = settled(256, 64)
    for position in range(8):
        cache[position] = float(position)
    torch.tpu.synchronize()

    def write() -> None:
        cache[100] = 3.0

    assert donated_by(write) == 1
    assert cache[:8, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7] and cache[100, 63].item() == 3
