"""Gathers, scatters, advanced indexing and embedding tables, against the CPU."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_matches, check
from torch.nn import functional as F

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*sizes, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 50, sizes).to(dtype)


def indices(limit: int, *sizes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, limit, sizes, dtype=dtype)


@pytest.mark.parametrize("dtype", (torch.uint16, torch.uint32, torch.uint64))
def test_wide_unsigned_integers(dtype: torch.dtype) -> None:
    """They have no promotion with the int64 of indices, and need none."""
    x, places = torch.tensor([[3, 1, 3], [40000, 2, 7]]).to(dtype), torch.tensor([1, 0, 1])
    mask = torch.tensor([True, False, True])
    check(lambda x, i: (x.index_select(0, i), x[i], x[:, i], F.embedding(i, x)), x, places)
    check(lambda x, m: x[:, m], x, mask)
    check(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    check(lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True), x)
    check(lambda x: torch.unique_consecutive(x, return_counts=True), x)
    # What the CPU has no kernels for.
    assert_matches(x.to(DEVICE).take(places.to(DEVICE)), x.flatten()[places])
    assert_matches(x.to(DEVICE).masked_select(mask.to(DEVICE)), x[:, mask].flatten())
    assert_matches(
        torch.where(mask.to(DEVICE), x.to(DEVICE), x[0].to(DEVICE)), torch.tensor([[3, 1, 3], [40000, 1, 7]]).to(dtype)
    )
    with pytest.raises(RuntimeError, match="Promotion for uint16, uint32, uint64"):
        x.to(DEVICE) + places.to(DEVICE)


# ---- along one dimension


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", (0, 1, -1))
def test_gather(dtype: torch.dtype, dim: int) -> None:
    check(torch.gather, values(3, 4, 5, dtype=dtype), dim, indices(3, 2, 3, 5))


def test_gather_edges() -> None:
    check(torch.gather, torch.tensor(3.0), 0, torch.tensor(0))
    check(torch.gather, values(3, 4), 1, indices(4, 3, 0))
    check(torch.gather, values(4, 3).t(), 0, indices(3, 3, 4).t().contiguous().t())
    check(torch.take_along_dim, values(3, 4), indices(4, 3, 2), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter(dtype: torch.dtype) -> None:
    index = torch.stack([torch.randperm(6)[:4] for _ in range(5)], 1)
    check(torch.scatter, values(6, 5, dtype=dtype), 0, index, values(4, 5, dtype=dtype))
    check(torch.scatter, values(6, 5, dtype=dtype), 0, index[:2, :3], 1)
    check(torch.scatter_add, values(6, 5, dtype=dtype), 0, index, values(4, 5, dtype=dtype))


@pytest.mark.parametrize("reduce", ("sum", "prod", "mean", "amax", "amin"))
@pytest.mark.parametrize("include_self", (True, False))
@pytest.mark.parametrize("dtype", (torch.float32, torch.int64))
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, index, source, reduce, include_self=include_self)

    check(run, values(4, 6, dtype=dtype), indices(5, 3, 9), values(4, 9, dtype=dtype) - 7)


def test_scatter_reduce_spreads_nan() -> None:
    source = torch.tensor([1.0, float("nan"), 3.0, 4.0])
    for reduce in ("amax", "amin", "sum"):
        check(
            lambda x, i, s, r=reduce: x.scatter_reduce(0, i, s, r), torch.zeros(3), torch.tensor([0, 1, 1, 2]), source
        )


@pytest.mark.parametrize("index_dtype", (torch.int64, torch.int32))
@pytest.mark.parametrize("dim", (0, 2))
def test_index_select(index_dtype: torch.dtype, dim: int) -> None:
    check(torch.index_select, values(4, 3, 5), dim, indices(4, 7, dtype=index_dtype))
    check(torch.index_select, values(4, 3, 5), dim, indices(4, 0, dtype=index_dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_updates(dtype: torch.dtype) -> None:
    x, source, index = values(4, 6, dtype=dtype), values(4, 3, dtype=dtype), torch.tensor([5, 0, 2])
    check(lambda x, i, s: x.index_add(1, i, s), x, index, source)
    check(lambda x, i, s: x.index_copy(1, i, s), x, index, source)
    check(lambda x, i: x.index_fill(1, i, 1), x, index)
    check(lambda x, i, v: x.index_fill(1, i, v), x, torch.tensor([-1, 0]), torch.tensor(1, dtype=dtype))
    check(lambda x, i, s: x.index_add_(1, i, s), x, index, source)
    check(lambda x, i, s: x.t().index_add_(0, i, s.t()), x, index, source)


def test_index_add_scales_and_accumulates_duplicates() -> None:
    index = torch.tensor([1, 1, 1, 0])
    check(lambda x, i, s: x.index_add(0, i, s, alpha=2.5), values(3, 2), index, values(4, 2))
    check(lambda x, i, s: x.index_add(0, i, s), torch.tensor(1.0), torch.tensor([0]), torch.tensor(2.0))


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ("prod", "mean", "amax", "amin"))
@pytest.mark.parametrize("include_self", (True, False))
def test_index_reduce(reduce: str, include_self: bool) -> None:
    def run(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.index_reduce(0, index, source, reduce, include_self=include_self)

    check(run, values(5, 3), indices(4, 8), values(8, 3))


def test_out_forms() -> None:
    x, index = values(3, 4), indices(3, 2, 4)
    out = torch.empty(0, device=DEVICE)
    torch.gather(x.to(DEVICE), 0, index.to(DEVICE), out=out)
    torch.testing.assert_close(out.cpu(), torch.gather(x, 0, index))
    torch.index_select(x.to(DEVICE), 1, index[0, :2].to(DEVICE), out=out)
    torch.testing.assert_close(out.cpu(), torch.index_select(x, 1, index[0, :2]))


# ---- several index tensors

A, B = torch.tensor([0, 2, -1]), torch.tensor([[1], [-2]])
PLACES: list[tuple[Any, ...]] = [
    (A,),
    (slice(None), A),
    (A, B),
    (slice(None), A, B),
    (A, slice(None), B),
    (A, slice(None), slice(None), B),
    (None, A, 1),
    (..., A, B),
    (slice(1, 3), A, slice(None, None, 2)),
    (A, A, A, A),
    (torch.zeros(0, dtype=torch.int64), B),
    (A.to(torch.int32),),
]


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_index(place: tuple[Any, ...]) -> None:
    check(operator.getitem, values(3, 4, 5, 6), place)


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
@pytest.mark.parametrize("accumulate", (False, True))
def test_index_put(place: tuple[Any, ...], accumulate: bool) -> None:
    def run(x: torch.Tensor, place: tuple[Any, ...]) -> torch.Tensor:
        # One value per place, equal for equal places, so that the order of writes does not matter.
        source = torch.arange(x.numel(), dtype=x.dtype).to(x.device).reshape(x.shape)[place]
        if accumulate:
            x[place] += 2
        else:
            x[place] = source
        return x

    check(run, values(3, 4, 5, 6), place)


def test_index_put_adds_duplicates_exactly() -> None:
    index = indices(5, 1000)
    check(
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        torch.zeros(5, dtype=torch.int64),
        index,
        indices(9, 1000),
    )
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), torch.zeros(5, 2), index, torch.ones(1000, 2))
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), torch.zeros(5, 2), index, torch.tensor(2.0))


def test_masked_assignment() -> None:
    x, mask = values(4, 5, 6), torch.rand(4, 5) > 0.5

    def assign(x: torch.Tensor, mask: torch.Tensor, v: Any) -> torch.Tensor:
        x[mask] = v
        return x

    check(assign, x, mask, 7.0)
    check(assign, x, mask, values(int(mask.sum()), 6))
    check(assign, x, mask, values(6))
    check(assign, x, torch.zeros(4, 5, dtype=torch.bool), values(6))
    check(lambda x, m, v: x.masked_scatter(m, v), x, mask[:, :, None], values(500))


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64))
def test_take_and_put(dtype: torch.dtype) -> None:
    x, index = values(3, 4, dtype=dtype), torch.tensor([[0, -1], [5, 7]])
    check(torch.take, x, index)
    check(torch.Tensor.put, x, index, values(2, 2, dtype=dtype))
    check(lambda x, i, v: x.put(i, v, accumulate=True), x, torch.tensor([3, 3, 3]), values(3, dtype=dtype))


def test_isin_and_repeat_interleave() -> None:
    check(torch.isin, indices(20, 5, 6), indices(20, 4))
    check(lambda x, s: torch.isin(x, s, invert=True), values(5), values(0))
    check(torch.isin, indices(20, 5), 3)
    # Large enough for the binary search.
    check(torch.isin, indices(100_000, 20_000), indices(100_000, 1_000))
    check(lambda r: torch.repeat_interleave(r, output_size=6), torch.tensor([2, 0, 1, 3]))
    check(lambda x, r: torch.repeat_interleave(x, r, 0, output_size=6), values(4, 3), torch.tensor([2, 0, 1, 3]))


# ---- errors

BAD: list[tuple[str, Any, type[Exception]]] = [
    ("index", lambda x, i: x[i], IndexError),
    ("index_put", lambda x, i: x.index_put((i,), x[0]), IndexError),
    ("index_select", lambda x, i: x.index_select(0, i), IndexError),
    ("gather", lambda x, i: x.gather(0, i[:, None]), RuntimeError),
    ("scatter", lambda x, i: x.scatter(0, i[:, None], 1.0), RuntimeError),
    ("take", lambda x, i: x.take(i * 4), IndexError),
    ("embedding", lambda x, i: F.embedding(i, x), IndexError),
]


@pytest.mark.parametrize(("name", "function", "error"), BAD, ids=[case[0] for case in BAD])
@pytest.mark.parametrize("bad", (3, 1 << 32, -4))
def test_out_of_range(name: str, function: Any, error: type[Exception], bad: int) -> None:
    x, index = torch.ones(3, 4), torch.tensor([0, bad])
    with pytest.raises(error):
        function(x, index)
    with pytest.raises(error, match=r"range|bounds"):
        function(x.to(DEVICE), index.to(DEVICE)).cpu()


# ---- gradients


def test_gradients() -> None:
    def run(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        y = x.gather(0, index[:2]).sum() + (x[index[0]] ** 2).sum() + x.index_select(1, index[0]).exp().sum()
        y = y + (x.scatter(0, index, source) ** 2).sum() + (x.index_add(0, index[0], source[:, :4]) ** 3).sum()
        y = y + x.masked_scatter(x > 0, source.flatten()).square().sum()
        return list(torch.autograd.grad(y, (x, source)))

    x, source = values(4, 4).requires_grad_(), values(4, 4).requires_grad_()
    index = torch.stack([torch.randperm(4) for _ in range(4)], 1)
    check(run, x, index, source)


# ---- embedding tables


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("padding", (None, 2))
@pytest.mark.parametrize("by_frequency", (False, True))
def test_embedding(dtype: torch.dtype, padding: int | None, by_frequency: bool) -> None:
    def run(weight: torch.Tensor, index: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.embedding(index, weight, padding_idx=padding, scale_grad_by_freq=by_frequency)
        return y, *torch.autograd.grad(y, weight, grad)

    weight, index, grad = values(10, 5, dtype=dtype), indices(10, 3, 4), values(3, 4, 5, dtype=dtype)
    got = run(weight.to(DEVICE).requires_grad_(), index.to(DEVICE), grad.to(DEVICE))
    # The CPU's bfloat16 gradient rounds after every row it adds; the exact sum, rounded once, is the reference.
    want = run(weight.float().requires_grad_(), index, grad.float())
    assert_matches(got, tuple(each.to(dtype) for each in want))


def test_embedding_edges() -> None:
    check(lambda w, i: F.embedding(i, w), values(4, 3), torch.tensor(2))
    check(lambda w, i: F.embedding(i, w), values(4, 3), torch.zeros(0, 2, dtype=torch.int32))
    check(lambda w, i: F.embedding(i, w, max_norm=0.5), values(4, 3), torch.tensor([1, 1, 3]))
    check(lambda w, i: F.embedding(i, w, max_norm=0.5, norm_type=1.0), values(4, 3), torch.tensor([1, 0]))


@pytest.mark.parametrize("mode", ("sum", "mean", "max"))
@pytest.mark.parametrize("last_offset", (False, True))
@pytest.mark.parametrize("padding", (None, 1))
def test_embedding_bag(mode: str, last_offset: bool, padding: int | None) -> None:
    def run(weight: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.embedding_bag(index, weight, offsets, mode=mode, include_last_offset=last_offset, padding_idx=padding)
        return y, *torch.autograd.grad((y**2).sum(), weight)

    check(run, values(7, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 1, 6]), torch.tensor([0, 2, 2, 7]))


def test_embedding_bag_weights() -> None:
    def run(weight: torch.Tensor, index: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.embedding_bag(index, weight, per_sample_weights=factors, mode="sum")
        return y, *torch.autograd.grad((y**2).sum(), (weight, factors))

    check(run, values(7, 4).requires_grad_(), indices(7, 3, 5), torch.rand(3, 5).requires_grad_())


@pytest.mark.parametrize(("a", "b"), itertools.product(range(2), repeat=2))
def test_expanded_index(a: int, b: int) -> None:
    """Indices that are views: expanded, sliced, transposed."""
    index = indices(3, 4, 6)[:, ::2]
    index = index.t() if a else index[:1].expand(4, 3)
    x = values(5, 5).t() if b else values(5, 5)
    check(torch.gather, x, 0, index)
    check(operator.getitem, x, index)


def test_nonzero_static_has_the_strides_of_the_cpu() -> None:
    x = torch.tensor([[1, 0, 2], [0, 3, 0]])
    for size in (2, 5):
        got, want = torch.nonzero_static(x.to(DEVICE), size=size), torch.nonzero_static(x, size=size)
        assert got.stride() == want.stride()
        assert torch.equal(got.cpu(), want)
