"""Every dtype: moved without change, computed as on the CPU, or refused; never narrowed behind the user's back."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import DEVICE, assert_matches, check, each_mode  # noqa: F401
from torch import Tensor

pytestmark = pytest.mark.usefixtures("each_mode")

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
MOVED = (
    torch.bool,
    *INTEGERS,
    *FLOATS,
    *COMPLEX,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def raw_bytes(x: Tensor) -> list[int]:
    return x.contiguous().view(torch.uint8).flatten().tolist()


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_moving_keeps_every_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    data = torch.randint(0, 256, (64, 16), generator=generator, dtype=torch.uint8)
    x = data[:, :1].gt(127).squeeze(1) if dtype is torch.bool else data.view(dtype)
    moved = x.to(DEVICE)
    assert moved.dtype == dtype
    assert raw_bytes(moved.cpu()) == raw_bytes(x)
    assert raw_bytes(moved.clone().cpu()) == raw_bytes(x)
    assert raw_bytes(moved[1:].contiguous().cpu()) == raw_bytes(x[1:])
    assert raw_bytes(moved.t().contiguous().cpu() if x.dim() == 2 else moved.cpu()) == raw_bytes(
        x.t().contiguous() if x.dim() == 2 else x
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_moves_keep_denormals_nan_payloads_and_signed_zero(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal / 4
    x = torch.tensor([0.0, -0.0, tiny, -tiny, math.nan, math.inf, -math.inf, 1.0], dtype=dtype)
    moved = x.to(DEVICE)
    window = moved.view(2, 4).t().contiguous().t().reshape(-1)
    joined = torch.cat((moved[:3], moved[3:]))
    for y in (moved, window, joined, moved.clone(), moved[torch.arange(8, device=DEVICE)]):
        assert raw_bytes(y.cpu()) == raw_bytes(x)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS), ids=str)
def test_arithmetic(dtype: torch.dtype) -> None:
    a = torch.tensor([[1, 2, 3], [7, 5, 100]]).to(dtype)
    b = torch.tensor([[3, 2, 1], [2, 9, 27]]).to(dtype)
    check(
        lambda a, b: [
            a + b,
            a - b,
            a * b,
            a / b,
            a // b,
            a % b,
            a == b,
            a < b,
            a.sum(),
            a.sum(0),
            a.max(),
            a.min(1),
            torch.maximum(a, b),
            a.clamp(2, 50),
            a.abs(),
            a + 1,
            a * 2,
            a + 0.5,
            2 - a,
            a.float(),
            a.prod(),
            a.argmax(),
            a.cumsum(1),
            a.t().contiguous(),
            torch.where(a > b, a, b),
            a.sort().values,
            torch.cat((a, b)),
            a.pow(2),
        ],
        a,
        b,
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_and_shift_as_on_cpu(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    a = torch.tensor([info.max, info.min, 1, info.max // 2], dtype=dtype)
    b = torch.tensor([1, 3, 2, 5], dtype=dtype)
    check(lambda a, b: [a + b, a * b, a - 2, a & b, a | b, a ^ b, ~a, a << 1, a >> 1, a.neg(), a // b, a % b], a, b)


def test_int64_is_not_cut() -> None:
    v = torch.tensor([2**31 + 1, -(2**40) - 3, 2**62])
    check(lambda v: [v, v - 1, v + v // 2, v > 2**35, v % 1000, v.sum(), v.max(), v * 3], v)


def test_float64_is_not_rounded() -> None:
    v = torch.tensor([1.0 + 2.0**-40, 1e300, -2147483646.25], dtype=torch.float64)
    check(lambda v: [v, v * 2, v.sum(), v.sqrt(), v.exp() * 0, v + 1e-10], v, rtol=1e-15, atol=0)
    m = torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check(lambda m: [m @ m, m.softmax(0), torch.layer_norm(m, (16,))], m)


def test_float32_matmul_is_float32() -> None:
    """Not reduced to bfloat16 or TF32 unless torch.set_float32_matmul_precision allows it."""
    m = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    exact = m.double() @ m.double().t()
    got = (m.to(DEVICE) @ m.to(DEVICE).t()).cpu()
    # A sum of n float32 products errs by less than n/2 units of its largest partial sum, far less in practice;
    # bfloat16 or TF32 products alone err by 1e-3 and 5e-4 of each term.
    assert ((got - exact).abs() <= 1e-5 * (m.abs() @ m.abs().t())).all()


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_half_types_round_once(dtype: torch.dtype) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    check(
        lambda x: [
            x.softmax(-1),
            x.sum(-1),
            x.mean(),
            x @ x.t(),
            torch.nn.functional.gelu(x),
            x.exp(),
            x * 3 + 1,
            torch.layer_norm(x, (64,)),
            x.norm(),
        ],
        x,
    )
    ones = torch.ones(4096, dtype=dtype, device=DEVICE)
    assert ones.sum().item() == 4096  # accumulated wider than the type


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    z, w = (torch.randn(3, 3, dtype=dtype, generator=generator) for _ in range(2))
    check(
        lambda z, w: [
            z + w,
            z * w,
            z / w,
            z.abs(),
            z.angle(),
            z.conj() * w,
            z @ w,
            z.sum(),
            z.real + z.imag,
            torch.view_as_real(z),
            z.exp(),
            z == w,
            z * (1 + 2j),
        ],
        z,
        w,
    )


def test_bool() -> None:
    a, b = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    check(
        lambda a, b: [
            a & b,
            a | b,
            a ^ b,
            ~a,
            a + b,
            a * b,
            a.sum(),
            a.any(),
            a.all(),
            a.int(),
            a.float(),
            a == b,
            a.cumsum(0),
            a + 1,
            a * 0.5,
            a.view(torch.uint8),
            a.nonzero(),
        ],
        a,
        b,
    )
    # A byte that is neither 0 nor 1 must not become a third truth value.
    x = torch.tensor([0, 2, 1, 255], dtype=torch.uint8)
    check(lambda x: x.to(torch.bool), x)


@pytest.mark.parametrize(
    "left", [torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32, torch.complex64], ids=str
)
@pytest.mark.parametrize("right", [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float64], ids=str)
def test_promotion(left: torch.dtype, right: torch.dtype) -> None:
    a, b = torch.tensor([0, 1, 1]).to(left), torch.tensor([1, 1, 0]).to(right)
    check(lambda a, b: [a + b, a * b, torch.where(a.bool(), a, b), torch.cat((a, b)), a[0] + b, a + b[0]], a, b)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.float32, torch.float64, torch.complex64], ids=str)
def test_factories(dtype: torch.dtype) -> None:
    def make(device: str) -> list[Tensor]:
        return [
            torch.zeros(2, 3, dtype=dtype, device=device),
            torch.ones(3, dtype=dtype, device=device),
            torch.full((2,), 3, dtype=dtype, device=device),
            torch.eye(3, 4, dtype=dtype, device=device),
            torch.tensor([[1, 2]], dtype=dtype, device=device),
            torch.empty(2, 0, dtype=dtype, device=device),
        ]

    assert_matches(make(DEVICE), make("cpu"))
    if not dtype.is_complex:
        assert_matches(torch.arange(-3, 9, 2, dtype=dtype, device=DEVICE), torch.arange(-3, 9, 2, dtype=dtype))


def test_default_dtype_is_followed() -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.ones(2, device=DEVICE).dtype == torch.float64
        assert (torch.arange(3, device=DEVICE) * 0.1).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
    assert (torch.arange(3, device=DEVICE) * 0.1).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_converts(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, -1.5, 0.3, 300.0, 1e-3])
    check(lambda x: x.to(dtype).to(torch.float32), x)


def test_unsupported_dtype_is_refused_by_name() -> None:
    with pytest.raises((RuntimeError, TypeError, NotImplementedError), match=r"(?i)quint8|quantized"):
        torch.empty(2, dtype=torch.quint8, device=DEVICE)
