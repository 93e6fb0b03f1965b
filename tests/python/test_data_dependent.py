"""Operators whose result size depends on data: exact for every size, one wait for a call at most, and programs for
powers of two instead of for every size."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tpu
from helpers import DEVICE, assert_matches, each_mode, to_device  # noqa: F401
from torch import Tensor

SIZES = (0, 1, 2, 31, 1001, 5003)


def mask(n: int, chosen: int) -> Tensor:
    """`chosen` of n elements."""
    found = torch.zeros(n, dtype=torch.bool)
    found[torch.randperm(n)[:chosen]] = True
    return found


def groups(n: int, different: int) -> Tensor:
    """n numbers, of which so many differ."""
    return (torch.arange(n) % max(different, 1))[torch.randperm(n)] * 3


def repeats(n: int, total: int) -> Tensor:
    """n counts that add up to `total`, many of them 0."""
    return torch.bincount(torch.randint(0, max(n, 1), (total,)), minlength=n)[:n] if n else torch.zeros(0).long()


def values(like: Tensor) -> Tensor:
    return torch.arange(len(like), dtype=torch.float32, device=like.device) * 0.5


def rows(like: Tensor) -> Tensor:
    return values(like)[:, None] + torch.arange(3, device=like.device)


def one(like: Tensor) -> Tensor:
    return torch.tensor(1, device=like.device)


# Name: what makes its argument from a size and the size of the result, the call, and how often it waits.
CALLS: dict[str, tuple[Callable[[int, int], Tensor], Callable[[Tensor], Any], int]] = {
    "nonzero": (mask, lambda m: m.nonzero(), 1),
    "nonzero_of_numbers": (lambda n, k: mask(n, k) * 2.5, lambda x: x.nonzero(), 1),
    "nonzero_tuple": (mask, lambda m: (m[:, None] & m.new_ones(3)).nonzero(as_tuple=True), 1),
    "where": (mask, lambda m: torch.where(m), 1),
    "argwhere": (mask, lambda m: torch.argwhere(m), 1),
    "masked_select": (mask, lambda m: torch.masked_select(rows(m), m[:, None]), 1),
    "index": (mask, lambda m: values(m)[m], 1),
    "index_rows": (mask, lambda m: rows(m)[m], 1),
    "index_all": (mask, lambda m: rows(m)[(rows(m) % 2 == 0) & m[:, None]], 1),
    "index_with_number": (mask, lambda m: rows(m)[m, 1], 1),
    "index_with_slice": (mask, lambda m: rows(m)[m, 1:, None], 1),
    "index_columns": (mask, lambda m: rows(m).T[:, m], 1),
    # A tensor as a number between brackets is read.
    "index_gap": (mask, lambda m: rows(m)[:, None, :][m, :, one(m)], 2),
    "index_two_masks": (lambda n, k: mask(n, min(k, 1)), lambda m: rows(m)[m, m.new_tensor([True, False, False])], 1),
    "index_bytes": (mask, lambda m: rows(m)[m.to(torch.uint8)], 1),
    "index_put": (mask, lambda m: values(m).index_put((m,), one(m).float()), 0),
    "index_put_with_number": (mask, lambda m: rows(m).index_put((m, one(m)), one(m).float()), 1),
    "index_put_add": (mask, lambda m: rows(m).index_put((m, one(m)), one(m).float(), accumulate=True), 1),
    "index_put_values": (mask, lambda m: rows(m).index_put((m, one(m)), -rows(m)[m, 0]), 2),
    "masked_scatter": (mask, lambda m: values(m).masked_scatter(m, -values(m)), 0),
    "masked_fill": (mask, lambda m: values(m).masked_fill(m, 7), 0),
    "unique": (groups, lambda x: torch.unique(x), 1),
    "unique_floats": (lambda n, k: groups(n, k) / 7, lambda x: torch.unique(x, return_inverse=True), 1),
    "unique_all": (groups, lambda x: torch.unique(x, return_inverse=True, return_counts=True), 1),
    "unique_consecutive": (
        lambda n, k: groups(n, k).sort().values,
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        1,
    ),
    "unique_rows": (
        lambda n, k: torch.stack([groups(n, k), groups(n, 2)], 1),
        lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
        1,
    ),
    "unique_consecutive_rows": (
        lambda n, k: groups(n, k).sort().values[:, None].expand(n, 2),
        lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True),
        1,
    ),
    "repeat_interleave": (repeats, lambda r: torch.repeat_interleave(r), 1),
    "repeat_interleave_rows": (repeats, lambda r: torch.repeat_interleave(rows(r), r, dim=0), 1),
    "bincount": (groups, lambda x: torch.bincount(x), 1),
    "bincount_weights": (groups, lambda x: torch.bincount(x, values(x), minlength=5), 1),
    "equal": (mask, lambda m: torch.tensor(torch.equal(m, m.clone())).to(m.device), 1),
}

# PyTorch on the CPU has no result either.
NOT_FOR_NOTHING = ("unique_rows", "unique_consecutive_rows")


def waits() -> float:
    torch.tpu.synchronize()
    return torch_tpu.compile_stats()["waits"]


def programs() -> float:
    stats = torch_tpu.compile_stats()
    return stats["compiles"] + stats["disk_hits"]


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("name", CALLS)
def test_exact(name: str) -> None:
    make, call, often = CALLS[name]
    for n in SIZES:
        if n == 0 and name in NOT_FOR_NOTHING:
            continue
        for k in sorted({0, n // 2, n}):
            x = make(n, k)
            on_device = to_device(x)
            before = waits()
            got = call(on_device)
            # Synchronising is a wait too.
            assert waits() - before <= often + 1
            want = call(x)
            assert_matches(got, want, rtol=0, atol=0)
            for g, w in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
                assert g.is_contiguous() or not w.is_contiguous()


# Those whose result does not come first in memory, and those that go on with a result of this size, have a program for
# each size: see docs/architecture.md.
FOR_EACH_SIZE = ("index_columns", "index_put_add", "index_put_values", "index_two_masks", "repeat_interleave_rows")


@pytest.mark.parametrize("name", [name for name in CALLS if name not in FOR_EACH_SIZE])
def test_programs_are_for_powers_of_two(name: str) -> None:
    """After results of all powers of two, no size of the result needs another program."""
    make, call, _ = CALLS[name]
    n = 300
    for k in (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 299, 300):
        call(to_device(make(n, k)))
    torch.tpu.synchronize()
    before = programs()
    for _ in range(20):
        k = random.randrange(n)
        x = make(n, k)
        assert_matches(call(to_device(x)), call(x), rtol=0, atol=0)
    assert programs() == before


@pytest.mark.parametrize("name", ("index_rows", "unique_all", "repeat_interleave", "bincount"))
def test_each_size_of_the_argument_has_programs(name: str) -> None:
    """A new size of the argument compiles, once."""
    make, call, _ = CALLS[name]
    seen = []
    for n in (211, 223, 211, 223):
        before = programs()
        call(to_device(make(n, 70)))
        torch.tpu.synchronize()
        seen.append(programs() - before)
    assert seen[0] > 0
    assert seen[1] > 0
    assert seen[2:] == [0, 0]


def test_gradients() -> None:
    chosen = mask(50, 20)
    results = []
    for device in ("cpu", DEVICE):
        x = torch.arange(100.0).view(50, 2).to(device).requires_grad_()
        m = chosen.to(device)
        y = (x[m] ** 2).sum() + (x[m, 1] * 3).sum() + torch.masked_select(x, m[:, None]).pow(3).sum()
        y = y + torch.repeat_interleave(x, m.long() * 2, dim=0).sum() + x.masked_scatter(~m[:, None], x * 2).sum()
        results.append(torch.autograd.grad(y, x)[0])
    assert_matches(results[1], results[0])


def test_results_are_apart_from_what_they_come_from() -> None:
    x = torch.arange(10.0, device=DEVICE)
    y = x[x > 3]
    y.add_(1)
    z = y.view(2, 3)
    z[0] = -1
    assert x.tolist() == list(range(10))
    assert y.tolist() == [-1, -1, -1, 8, 9, 10]
    out = torch.empty(0, device=DEVICE)
    torch.masked_select(x, x > 3, out=out)
    assert out.tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("strides", [None, (2, 1), (1, 3)])
def test_places_in_a_given_tensor(strides: tuple[int, int] | None) -> None:
    """A tensor that has to be resized gets the strides of a new result."""
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])

    def places(x: Tensor) -> Tensor:
        out = torch.empty(0, dtype=torch.int64, device=x.device)
        if strides is not None:
            out = torch.empty_strided((3, 2), strides, dtype=torch.int64, device=x.device)
        return torch.nonzero(x, out=out)

    assert_matches(places(x.to(DEVICE)), places(x), strides=True)


def test_repeats_that_do_not_fit() -> None:
    for repeat, size in (([1, 2], 4), ([3, -1], None), ([1, -1], 1)):
        for device in ("cpu", DEVICE):
            with pytest.raises(RuntimeError, match=r"negative|does not match"):
                torch.repeat_interleave(torch.tensor(repeat, device=device), output_size=size).cpu()
