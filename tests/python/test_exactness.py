"""Results that have one right answer, compared bit for bit over random shapes, strides, dtypes and awkward values.

Every operator is drawn with operands full of extremes: the ends of integer ranges, signed zeros, infinities, NaN, ties.
What PyTorch raises on the CPU must be raised here too, by type.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from helpers import DEVICE, to_device
from hypothesis import strategies as st
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((), (1,), (5,), (3, 4), (2, 1, 3), (0,), (2, 0, 3))

settings = hypothesis.settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=False,
)

# Not subnormal: XLA:CPU flushes those (docs/architecture.md).
AWKWARD_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, -7.0, 1e4, math.inf, -math.inf, math.nan)


def awkward_integers(dtype: torch.dtype) -> list[int]:
    ends = torch.iinfo(dtype)
    return [v for v in (ends.min, ends.min + 1, -7, -2, -1, 0, 1, 2, 3, 7, ends.max - 1, ends.max) if v >= ends.min]


def values_of(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    if dtype is torch.bool:
        return st.booleans()
    return st.sampled_from(AWKWARD_FLOATS if dtype.is_floating_point else awkward_integers(dtype))


@st.composite
def tensors(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of awkward values that lies in its storage in one of several ways."""
    count = torch.Size(shape).numel()
    elements = draw(st.lists(values_of(dtype), min_size=count, max_size=count))
    x = torch.tensor(elements, dtype=dtype).reshape(shape)
    layout = draw(st.sampled_from(("plain", "plain", "transposed", "stepped", "repeated")))
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "stepped" and x.dim():
        return torch.stack([x, x], -1).flatten(-2)[..., ::2]
    if layout == "repeated" and x.dim() and x.numel():
        return x[:1].expand_as(x)
    return x


def copy_with_layout(x: Tensor) -> Tensor:
    """The same sizes, strides and offset over a copy of the whole storage, on the device."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return to_device(memory).as_strided(x.shape, x.stride(), x.storage_offset())


def outcome(function: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        result = function(*arguments)
        return [t.cpu() for t in (result if isinstance(result, (tuple, list)) else [result])]
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
        return error


def assert_same(function: Callable[..., Any], *arguments: Any, exact: bool = True) -> None:
    """Same dtypes, sizes and bits on both devices (any NaN is NaN), or the same type of exception.

    `exact=False`: at PyTorch's default tolerances instead of bit for bit.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(function, list(arguments))
        got = outcome(function, [copy_with_layout(a) if isinstance(a, Tensor) else a for a in arguments])
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert type(got) is type(want), f"{got!r} instead of {want!r}"
        return
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if not exact:
            torch.testing.assert_close(g, w, equal_nan=True)
            continue
        same = (g == w) | (g.isnan() & w.isnan())
        if w.dtype.is_floating_point:
            same &= (g.signbit() == w.signbit()) | w.isnan()
        assert same.all(), f"{g} instead of {w}"


# --------------------------------------------------------------------------------------------------- integers

BINARY_ON_INTEGERS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "floor_divide": torch.floor_divide,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lt": torch.lt,
    "eq": torch.eq,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=3),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
}


@pytest.mark.parametrize("name", BINARY_ON_INTEGERS)
@settings
@hypothesis.given(data=st.data())
def test_integer_arithmetic(name: str, data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(INTEGERS)), data.draw(st.sampled_from(SHAPES))
    a, b = data.draw(tensors(dtype, shape)), data.draw(tensors(dtype, shape))
    if name in ("lcm", "gcd"):  # the absolute value of the lowest number overflows: C++ leaves that open
        a, b = (x.clamp(min=torch.iinfo(dtype).min + 1) for x in (a, b))
        a, b = (a % 12, b % 12) if name == "lcm" else (a, b)
    if name in ("floor_divide", "div_trunc", "remainder", "fmod") and dtype.is_signed:
        # The lowest number divided by -1 overflows: C++ leaves that open.
        a = a.clamp(min=torch.iinfo(dtype).min + 1)
    assert_same(BINARY_ON_INTEGERS[name], a, b)


@pytest.mark.parametrize("name", ["__lshift__", "__rshift__"])
@settings
@hypothesis.given(data=st.data())
def test_shifts(name: str, data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(INTEGERS)), data.draw(st.sampled_from(SHAPES))
    amounts = data.draw(tensors(dtype, shape)).abs() % (torch.iinfo(dtype).bits + 2)
    assert_same(getattr(Tensor, name), data.draw(tensors(dtype, shape)), amounts)


REDUCTIONS_OF_INTEGERS: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in ("sum", "prod", "cumsum", "cumprod", "amax", "amin", "argmax", "argmin", "any", "all", "max", "min")
} | {
    "cummax": torch.cummax,
    "median": torch.median,
    "mode": torch.mode,
    "count_nonzero": torch.count_nonzero,
    "logsumexp_refused": torch.logcumsumexp,
    "diff": lambda x, dim: torch.diff(x, dim=dim),
    "sort": lambda x, dim: torch.sort(x, dim, stable=True),
    "argsort_descending": lambda x, dim: torch.argsort(x, dim, descending=True, stable=True),
    "topk_values": lambda x, dim: torch.topk(x, 1, dim).values,
    "kthvalue": lambda x, dim: torch.kthvalue(x, 1, dim).values,
    "flip_roll": lambda x, dim: x.flip(dim).roll(1, dim),
}
# PyTorch says nothing about which of several equal elements these point to.
ONLY_VALUES = ("max", "min", "median", "mode", "cummax")


@pytest.mark.parametrize("name", REDUCTIONS_OF_INTEGERS)
@settings
@hypothesis.given(data=st.data())
def test_integer_reductions(name: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((*INTEGERS, torch.bool)))
    x = data.draw(tensors(dtype, data.draw(st.sampled_from(SHAPES))))
    dim = data.draw(st.integers(-1, max(0, x.dim() - 1)))
    hypothesis.assume(not (name == "median" and x.dtype is torch.bool))  # PyTorch's kernel has no bool; ours has
    function = REDUCTIONS_OF_INTEGERS[name]
    if name in ("argmax", "argmin"):
        assert_same(lambda t: t.gather(dim, function(t, dim, keepdim=True)) if t.dim() else function(t, dim), x)
    else:
        assert_same(lambda t: function(t, dim)[0] if name in ONLY_VALUES else function(t, dim), x)


@settings
@hypothesis.given(data=st.data())
def test_integer_powers(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTEGERS))
    base = data.draw(tensors(dtype, (5,)))
    exponent = data.draw(st.integers(-2, 9))
    assert_same(lambda b: b**exponent, base)
    assert_same(lambda e: exponent**e, (base % 9))
    assert_same(torch.pow, base, data.draw(tensors(dtype, (5,))) % 11)


# ----------------------------------------------------------------------------------------------------- floats

EXACT_ON_FLOATS: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "frac": torch.frac,
    "relu": torch.relu,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "nan_to_num": torch.nan_to_num,
    "logical_not": torch.logical_not,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
    "square": torch.square,
    "clamp": lambda x: x.clamp(-1.0, 2.5),
    "clamp_nan_bound": lambda x: x.clamp(min=math.nan),
    "clamp_crossed": lambda x: x.clamp(3, -3),
    "hardtanh": torch.nn.functional.hardtanh,
    "threshold": lambda x: torch.nn.functional.threshold(x, 0.5, 7.0),
    "heaviside": lambda x: torch.heaviside(x, torch.full_like(x, 0.25)),
    "frexp_mantissa": lambda x: torch.frexp(x.nan_to_num(0, 1, 1)),
}


@pytest.mark.parametrize("name", EXACT_ON_FLOATS)
@settings
@hypothesis.given(data=st.data())
def test_exact_functions_of_floats(name: str, data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(SHAPES))
    # The larger of two zeros may be either.
    x = data.draw(tensors(dtype, shape)) + (0.0 if name == "relu" else -0.0)
    # XLA:CPU's square root of float64 is off by one unit for some.
    assert_same(EXACT_ON_FLOATS[name], x, exact=name != "sqrt")


EXACT_ON_PAIRS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "copysign": torch.copysign,
    "where": lambda a, b: torch.where(a > b, a, b),
    "ge": torch.ge,
    "ne": torch.ne,
    "clamp_tensor": lambda a, b: a.clamp(min=b),
    "heaviside": torch.heaviside,
    "isclose": lambda a, b: torch.isclose(a, b, equal_nan=True),
}


@pytest.mark.parametrize("name", EXACT_ON_PAIRS)
@settings
@hypothesis.given(data=st.data())
def test_exact_functions_of_pairs(name: str, data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(SHAPES))
    assert_same(EXACT_ON_PAIRS[name], data.draw(tensors(dtype, shape)), data.draw(tensors(dtype, shape)))


@settings
@hypothesis.given(data=st.data())
def test_power_edges(data: st.DataObject) -> None:
    """Where pow is exact: zeros, ones, infinities, NaN, small whole exponents."""
    dtype = data.draw(st.sampled_from((torch.float32, torch.float64)))
    edges = st.sampled_from((0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, math.inf, -math.inf, math.nan))
    a, b = (torch.tensor(data.draw(st.lists(edges, min_size=8, max_size=8)), dtype=dtype) for _ in range(2))
    assert_same(torch.pow, a, b)
    exponent = data.draw(edges)
    assert_same(lambda x: x**exponent, a)
    assert_same(lambda x: exponent**x, b)


ORDERS: dict[str, Callable[..., Any]] = {
    "sort": lambda x, dim: torch.sort(x, dim, stable=True),
    "sort_descending": lambda x, dim: torch.sort(x, dim, descending=True, stable=True),
    "argsort": lambda x, dim: torch.argsort(x, dim, stable=True),
    "topk": lambda x, dim: torch.topk(x, min(2, x.shape[dim]), dim).values,
    "smallest": lambda x, dim: torch.topk(x, min(2, x.shape[dim]), dim, largest=False).values,
    "max": lambda x, dim: torch.max(x, dim).values,
    "min": lambda x, dim: torch.min(x, dim).values,
    "amax": torch.amax,
    "cummax": lambda x, dim: torch.cummax(x, dim).values,
    "cummin": lambda x, dim: torch.cummin(x, dim).values,
    "median": lambda x, dim: torch.median(x, dim).values,
    "nanmedian": lambda x, dim: torch.nanmedian(x, dim).values,
    "kthvalue": lambda x, dim: torch.kthvalue(x, x.shape[dim], dim).values,
    "aminmax": lambda x, dim: tuple(torch.aminmax(x, dim=dim)),
}


@pytest.mark.parametrize("name", ORDERS)
@settings
@hypothesis.given(data=st.data())
def test_order_with_nan_and_ties(name: str, data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from([(5,), (3, 4), (2, 0, 3), (2, 1, 3)]))
    # Which of two equal zeros of different sign comes out is open, so there is one kind.
    x = data.draw(tensors(dtype, shape)) + 0.0
    dim = data.draw(st.integers(0, x.dim() - 1))
    assert_same(lambda t: ORDERS[name](t, dim), x)


# ------------------------------------------------------------------------------------- accumulation and scatter


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@settings
@hypothesis.given(data=st.data())
def test_scatter_reduce_of_integers(reduce: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((torch.int32, torch.int64, torch.uint8)))
    small = st.integers(0, 9)
    size = data.draw(st.integers(1, 6))
    target = torch.tensor(data.draw(st.lists(small, min_size=size, max_size=size)), dtype=dtype)
    source = torch.tensor(data.draw(st.lists(small, min_size=7, max_size=7)), dtype=dtype)
    index = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=7, max_size=7)))
    include = data.draw(st.booleans())
    assert_same(lambda t, i, s: t.scatter_reduce(0, i, s, reduce, include_self=include), target, index, source)
    if reduce != "sum":
        assert_same(lambda t, i, s: t.index_reduce(0, i, s, reduce, include_self=include), target, index, source)


@settings
@hypothesis.given(data=st.data())
def test_accumulation_at_repeated_indices(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((torch.int32, torch.int64, torch.float32, torch.bool)))
    x = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=12, max_size=12))).reshape(3, 4).to(dtype)
    rows, columns = (torch.tensor(data.draw(st.lists(st.integers(-n, n - 1), min_size=6, max_size=6))) for n in (3, 4))
    new = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=6, max_size=6))).to(dtype)
    assert_same(lambda t, r, c, v: t.index_put((r, c), v, accumulate=True), x, rows, columns, new)
    assert_same(lambda t, r, v: t.index_add(0, r % 3, v[:, None].expand(6, 4)), x, rows, new)
    assert_same(lambda t, r, c, v: t.put((r % 3) * 4 + c % 4, v, accumulate=True), x, rows, columns, new)
    assert_same(lambda t, c, v: t.scatter_add(1, (c % 4).expand(3, 6), v.expand(3, 6)), x, columns, new)


@settings
@hypothesis.given(data=st.data())
def test_half_sums_accumulate_in_float32(data: st.DataObject) -> None:
    """4,096 equal terms: a sum kept in half precision would stand still at 256 (bfloat16) or 2,048 (float16)."""
    dtype = data.draw(st.sampled_from((torch.bfloat16, torch.float16)))
    value = data.draw(st.sampled_from((1.0, 0.5, -2.0)))
    x = torch.full((4096, 2), value, dtype=dtype)
    for reduce in (torch.sum, torch.mean):
        assert_same(lambda t, reduce=reduce: reduce(t, 0), x)
        assert_same(lambda t, reduce=reduce: reduce(t, 0, dtype=torch.float32), x)
    ones = torch.ones(1, 4096, dtype=dtype)
    assert_same(lambda a, b: a @ b, ones, x)


# -------------------------------------------------------------------------------------------- dtypes of results

EVERY_DTYPE = (torch.bool, *INTEGERS, *FLOATS, torch.complex64)
NUMBERS = (True, 2, -3, 0.5, 3.0, 1 + 2j)
PROMOTING: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "sub": torch.sub,
    "eq": torch.eq,
    "where": lambda a, b: torch.where(torch.ones_like(a, dtype=torch.bool), a, b),
    "maximum": lambda a, b: torch.maximum(a, b if isinstance(b, Tensor) else torch.as_tensor(b)),
    "cat": lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]) if isinstance(b, Tensor) else a,
    "floor_divide": torch.floor_divide,
    "pow": torch.pow,
    "in_place": lambda a, b: a.clone().add_(b),
}


@pytest.mark.parametrize("name", PROMOTING)
@settings
@hypothesis.given(data=st.data())
def test_promotion(name: str, data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(EVERY_DTYPE)), data.draw(st.sampled_from(EVERY_DTYPE))
    hypothesis.assume({one, other} != {torch.float16, torch.complex64})  # complex of halves is not supported
    a = torch.tensor([1, 2, 3]).to(one)
    exact = name != "pow"
    kinds = ("tensor", "zero_dim", "zero_dim_of_cpu", "number", "reversed")
    kind = data.draw(st.sampled_from(kinds if name != "cat" else kinds[:2]))
    if kind == "tensor":
        assert_same(PROMOTING[name], a, torch.tensor([1, 2, 1]).to(other), exact=exact)
    elif kind == "zero_dim":
        assert_same(PROMOTING[name], a, torch.tensor(2).to(other), exact=exact)
    elif kind == "zero_dim_of_cpu":
        assert_same(lambda t: PROMOTING[name](t, torch.tensor(2).to(other)), a, exact=exact)
    elif kind == "number":
        number = data.draw(st.sampled_from(NUMBERS))
        hypothesis.assume(not (isinstance(number, complex) and one is torch.float16))
        # PyTorch's Meta kernel gives int64, its CPU kernel bool.
        hypothesis.assume(not (name == "pow" and one is torch.bool and number is True))
        assert_same(lambda t: PROMOTING[name](t, number), a, exact=exact)
    else:
        assert_same(PROMOTING[name], torch.tensor(2).to(other), a, exact=exact)


@settings
@hypothesis.given(
    numbers=st.lists(st.one_of(st.integers(-5, 5), st.sampled_from((0.5, -1.5, True))), min_size=3, max_size=9)
)
def test_numbers_are_never_stale(numbers: list[Any]) -> None:
    """One line of code, many numbers: a plan made for one must not answer for another."""
    x = torch.tensor([1.0, -2.0, 3.0])
    for n in numbers:
        for function in (
            lambda t, n=n: t + n,
            lambda t, n=n: t.clamp(min=n),
            lambda t, n=n: torch.where(t > n, t, n),
            lambda t, n=n: torch.full_like(t, n),
            lambda t, n=n: torch.add(t, t, alpha=n),
            lambda t, n=n: torch.abs(t) ** n,
            lambda t, n=n: t.masked_fill(t > 0, n),
            lambda t, n=n: torch.arange(int(n), 7, device=t.device),
        ):
            assert_same(function, x)


# ------------------------------------------------------------------------------------------------ empty tensors

ON_EMPTY: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in (
        *("sum", "prod", "mean", "amax", "argmax", "max", "all", "any", "std", "var", "logsumexp", "median", "norm"),
        *("sort", "cumsum", "softmax", "flip", "diff", "mode", "argsort", "unbind", "cummax", "count_nonzero"),
    )
} | {
    "matmul": lambda x, dim: x @ x.transpose(-1, -2) if x.dim() > 1 else x @ x,
    "cat": lambda x, dim: torch.cat([x, x], dim),
    "index_select": lambda x, dim: x.index_select(dim, torch.zeros(0, dtype=torch.int64, device=x.device)),
    "gather": lambda x, dim: x.gather(dim, torch.zeros_like(x, dtype=torch.int64)),
    "nonzero": lambda x, dim: x.nonzero(),
    "unique": lambda x, dim: torch.unique(x),
    "masked_select": lambda x, dim: x[x > 0],
    "topk": lambda x, dim: torch.topk(x, 1, dim),
    "topk_none": lambda x, dim: torch.topk(x, 0, dim),
    "linear": lambda x, dim: torch.nn.functional.linear(x, torch.ones(2, x.shape[-1], device=x.device)),
    "layer_norm": lambda x, dim: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "mse_loss": lambda x, dim: torch.nn.functional.mse_loss(x, x),
    "relu": lambda x, dim: torch.relu(x),
    "full_sum": lambda x, dim: x.sum(),
    "full_max": lambda x, dim: x.max(),
    "full_argmax": lambda x, dim: x.argmax(),
}


@pytest.mark.parametrize("name", ON_EMPTY)
def test_empty(name: str) -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3), (0, 0)):
        for dim in range(-1, len(shape)):
            if name in ("softmax", "flip", "norm"):
                function = {
                    "softmax": lambda t, dim=dim: torch.softmax(t, dim),
                    "flip": lambda t, dim=dim: t.flip(dim),
                    "norm": lambda t, dim=dim: torch.linalg.vector_norm(t, dim=dim),
                }[name]
                assert_same(function, torch.ones(shape))
            elif name == "diff":
                assert_same(lambda t, dim=dim: torch.diff(t, dim=dim), torch.ones(shape))
            else:
                assert_same(lambda t, dim=dim: ON_EMPTY[name](t, dim), torch.ones(shape))


def test_device_is_the_one_under_test() -> None:
    """copy_with_layout would make the other tests compare the CPU with itself if it lost the device."""
    x = torch.arange(12.0).view(3, 4).t()[1:, ::2]
    copy = copy_with_layout(x)
    assert copy.device.type == DEVICE and copy.stride() == x.stride() and torch.equal(copy.cpu(), x)
