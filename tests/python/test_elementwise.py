"""Pointwise operators against the CPU: dtypes, broadcasting, scalars, layouts, special values, errors, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_matches, check, to_device
from torch import Tensor

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
SIZES = ((3, 5), (), (0, 4), (2, 1, 3))

# Whole line: zeros of both signs, ends of the range, both infinities and NaN.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -1.5, 3.0, 20.0, -20.0, 88.0, -88.0, 1e4, -1e10, 3e38, INF, -INF, NAN]


def values(sizes: tuple[int, ...], dtype: torch.dtype, low: float = -4, high: float = 4) -> Tensor:
    """Different on each call within a test, the same in each run."""
    if dtype == torch.bool:
        return torch.rand(sizes) > 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(max(int(low), 0) if dtype == torch.uint8 else int(low), int(high) + 1, sizes, dtype=dtype)
    if dtype.is_complex:
        return torch.randn(sizes, dtype=dtype)
    return (torch.rand(sizes, dtype=torch.float64) * (high - low) + low).to(dtype)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# Name -> range in which float samples are drawn.
UNARY: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        [
            "abs",
            "neg",
            "sign",
            "sgn",
            "signbit",
            "floor",
            "ceil",
            "trunc",
            "round",
            "frac",
            "exp",
            "exp2",
            "expm1",
            "sin",
            "cos",
            "sinh",
            "cosh",
            "tanh",
            "atan",
            "asinh",
        ],
        (-4, 4),
    ),
    **dict.fromkeys(
        [
            "erf",
            "erfc",
            "sinc",
            "isnan",
            "isinf",
            "isposinf",
            "isneginf",
            "isfinite",
            "logical_not",
            "nan_to_num",
            "angle",
            "square",
        ],
        (-4, 4),
    ),
    **dict.fromkeys(
        ["deg2rad", "rad2deg", "positive", "special.i0", "special.i0e", "special.i1", "special.i1e", "special.erfcx"],
        (-9, 9),
    ),
    **dict.fromkeys(
        ["special.log_ndtr", "special.bessel_j0", "special.bessel_j1", "special.spherical_bessel_j0"], (-12, 12)
    ),
    **dict.fromkeys(
        ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "special.entr", "digamma", "lgamma"], (0.1, 9)
    ),
    **dict.fromkeys(
        ["special.bessel_y0", "special.bessel_y1", "special.modified_bessel_k0", "special.modified_bessel_k1"],
        (0.1, 15),
    ),
    **dict.fromkeys(["special.scaled_modified_bessel_k0", "special.scaled_modified_bessel_k1"], (0.1, 15)),
    **dict.fromkeys(["asin", "acos", "atanh", "erfinv"], (-0.9, 0.9)),
    **dict.fromkeys(["special.ndtri", "logit"], (0.05, 0.95)),
    "acosh": (1.1, 9),
    "tan": (-1.2, 1.2),
}
# Where the CPU's own kernel rounds at every step in half precision and is off by more than the tolerance.
COARSE_IN_HALF = {"logit"}
# PyTorch's double kernels of these are accurate to 1e-6 only (its coefficients are those of single precision); see
# test_bessel_functions_in_double for ours.
COARSE_IN_DOUBLE = {"special.bessel_j0", "special.bessel_j1", "special.bessel_y0", "special.bessel_y1"}


def function_of(name: str) -> Callable[..., Any]:
    owner: Any = torch
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_unary(name: str, dtype: torch.dtype) -> None:
    function, (low, high) = function_of(name), UNARY[name]
    tolerance = {}
    if dtype == torch.float64 and name in COARSE_IN_DOUBLE:
        tolerance = {"rtol": 1e-5, "atol": 1e-6}
    for sizes in SIZES:
        x = values(sizes, dtype, low, high)
        try:
            function(x)
        except (RuntimeError, TypeError) as error:
            pytest.skip(f"not on the CPU either: {error}")
        if dtype == torch.bfloat16 and name in COARSE_IN_HALF:
            assert_matches(function(to_device(x)), function(x.float()).to(dtype))
        else:
            check(function, x, **tolerance)


def test_conjugates_in_place() -> None:
    z = values((3, 4), torch.complex64)
    check(lambda z: z.conj_physical_(), z)
    check(lambda z: z.t()[1:].conj_physical_(), z)
    check(lambda z: z.conj().conj_physical_(), z)
    check(lambda x: x.conj_physical_(), z.real.contiguous())


def test_bessel_functions_in_double() -> None:
    """To the last digits, which the CPU's miss: J1 Y0 - J0 Y1 = 2 / (pi x), NIST's Digital Library of Mathematical
    Functions, 10.5.2."""
    x = torch.linspace(0.1, 60, 1000, dtype=torch.float64, device=DEVICE)
    j0, j1 = torch.special.bessel_j0(x), torch.special.bessel_j1(x)
    y0, y1 = torch.special.bessel_y0(x), torch.special.bessel_y1(x)
    torch.testing.assert_close((j1 * y0 - j0 * y1) * x, torch.full_like(x, 2 / math.pi), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", [n for n in UNARY if "bessel" not in n])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_unary_of_special_values(name: str, dtype: torch.dtype) -> None:
    check(function_of(name), torch.tensor(SPECIAL, dtype=dtype))


COMPLEX_UNARY = [
    "abs",
    "neg",
    "sgn",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "expm1",
    "log1p",
    "log2",
    "log10",
    "angle",
    "isnan",
    "isinf",
    "isfinite",
    "sigmoid",
    "square",
]


@pytest.mark.parametrize("name", COMPLEX_UNARY)
def test_unary_of_complex(name: str) -> None:
    for dtype in (torch.complex64, torch.complex128):
        check(function_of(name), values((3, 5), dtype))


def test_unary_layouts() -> None:
    x = values((4, 6), torch.float32)
    for window in (lambda t: t.t(), lambda t: t[1:, ::2], lambda t: t[0].expand(3, 6), lambda t: t.flatten()[5]):
        check(lambda t, window=window: window(t).sin(), x)
        check(lambda t, window=window: window(t) * 2 + window(t), x)


@pytest.mark.parametrize("name", ["sin", "neg", "floor", "reciprocal", "sigmoid", "rsqrt", "nan_to_num"])
def test_inplace_and_out(name: str) -> None:
    x = values((3, 5), torch.float32, 0.2, 4)
    check(lambda t: getattr(t, name + "_")(), x)
    check(lambda t: getattr(t[:, 1:4], name + "_")(), x)
    check(lambda t: function_of(name)(t, out=torch.empty(0, device=t.device)), x)


# Name -> dtypes beside the floats, and a range for the second operand.
BINARY: dict[str, tuple[tuple[torch.dtype, ...], tuple[float, float]]] = {
    **dict.fromkeys(
        [
            "add",
            "mul",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "maximum",
            "minimum",
            "logical_and",
            "logical_or",
            "logical_xor",
        ],
        ((*INTEGERS, torch.bool), (-4, 4)),
    ),
    **dict.fromkeys(["sub", "rsub", "heaviside", "fmax", "fmin", "xlogy", "copysign"], (INTEGERS, (-4, 4))),
    **dict.fromkeys(["div", "true_divide", "floor_divide", "remainder", "fmod"], (INTEGERS, (1, 4))),
    **dict.fromkeys(["atan2", "hypot", "nextafter", "logaddexp", "logaddexp2", "special.xlog1py"], ((), (0.5, 4))),
    **dict.fromkeys(["gcd", "lcm"], (INTEGERS, (-30, 30))),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], ((*INTEGERS, torch.bool), (-9, 9))),
    **dict.fromkeys(["bitwise_left_shift", "bitwise_right_shift"], (INTEGERS, (0, 9))),
    "pow": (INTEGERS, (0, 4)),
    "ldexp": ((), (-3, 3)),
    "special.zeta": ((), (0.5, 4)),
    "igamma": ((), (0.1, 4)),
    "igammac": ((), (0.1, 4)),
}
INTEGERS_ONLY = {"gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"}
# The first operand must be positive.
POSITIVE_FIRST = {"pow", "special.zeta", "igamma", "igammac"}


def binary_cases() -> list[tuple[str, torch.dtype]]:
    return [
        (name, dtype)
        for name, (more, _) in BINARY.items()
        for dtype in (() if name in INTEGERS_ONLY else FLOATS) + more
    ]


@pytest.mark.parametrize(("name", "dtype"), binary_cases(), ids=str)
def test_binary(name: str, dtype: torch.dtype) -> None:
    function, (low, high) = function_of(name), BINARY[name][1]
    first = (0.5, 4) if name in POSITIVE_FIRST else (-30, 30) if name in INTEGERS_ONLY else (-4, 4)
    for sizes, others in (((3, 5), (3, 5)), ((3, 1), (5,)), ((0, 4), (4,)), ((), (2, 2))):
        a, b = values(sizes, dtype, *first), values(others, dtype, low, high)
        try:
            function(a, b)
        except (RuntimeError, TypeError) as error:
            pytest.skip(f"not on the CPU either: {error}")
        check(function, a, b)


EXTREME_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "remainder",
    "fmod",
    "floor_divide",
    "pow",
    "atan2",
    "hypot",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "copysign",
    "nextafter",
    "xlogy",
    "heaviside",
    "logaddexp",
    "eq",
    "ne",
    "lt",
    "ge",
]
# XLA:CPU divides by a broadcast divisor through its reciprocal, which is subnormal, so 0, for divisors above 8.5e37;
# and the CPU's own vector remainder gives NaN where the quotient overflows.
DIVISIONS = {"div", "remainder", "fmod", "floor_divide"}


@pytest.mark.parametrize("name", EXTREME_BINARY)
def test_binary_of_special_values(name: str) -> None:
    row = torch.tensor(SPECIAL)
    if name in DIVISIONS:
        row = row[row != 3e38]
    check(function_of(name), row[:, None], row[None, :])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("number", [2, -3, 2.5, True], ids=str)
def test_python_numbers(dtype: torch.dtype, number: float) -> None:
    x = values((3, 4), dtype, 1, 4)
    functions: list[Callable[[Tensor], Any]] = [
        lambda t: t + number,
        lambda t: number - t,
        lambda t: t * number,
        lambda t: t / number,
        lambda t: number / t,
        lambda t: t // number,
        lambda t: t % number,
        lambda t: number % t,
        lambda t: number**t,
        lambda t: t == number,
        lambda t: t < number,
        lambda t: t.clamp(min=number),
        lambda t: torch.where(t > 2, t, number),
        lambda t: t.copysign(number),
        lambda t: torch.xlogy(t, number),
    ]
    if not (dtype == torch.bool and number is True):  # PyTorch's metadata says int64 there, its CPU kernel bool
        functions.append(lambda t: t**number)
    for function in functions:
        try:
            function(x)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        check(function, x)


def test_mixed_dtypes_promote() -> None:
    tensors = [values((3, 4), d, 1, 4) for d in (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)]
    for a in tensors:
        for b in tensors:
            check(lambda x, y: (x + y, x * y, x / y, x < y, torch.maximum(x, y), torch.where(x > 1, x, y)), a, b)
        check(lambda x: (x + x[0, 0], x * torch.tensor(2.5), x > torch.tensor(1)), a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_division_modes(dtype: torch.dtype, mode: str | None) -> None:
    a, b = values((6, 7), dtype, -50, 50), values((6, 7), dtype, 1, 7)
    check(lambda x, y: torch.div(x, y, rounding_mode=mode), a, b)
    check(lambda x: torch.div(x, 3, rounding_mode=mode), a)
    if dtype != torch.uint8:
        check(lambda x, y: (torch.div(x, y, rounding_mode=mode), x // y, x % y, torch.fmod(x, y)), a, -b)


def test_power_of_bools() -> None:
    x = torch.tensor([True, False])
    for exponent in (True, False):
        check(torch.pow, x, exponent)
    on_device = x.to(DEVICE)
    on_device.pow_(True)
    assert torch.equal(on_device.cpu(), x)
    for base, exponent in ((on_device, on_device), (True, on_device)):
        with pytest.raises(NotImplementedError, match="\"pow\" not implemented for 'Bool'"):
            torch.pow(base, exponent)


def test_integer_power_wraps_and_inverts() -> None:
    base = torch.tensor([0, 1, -1, 2, -2, 3, 7, -9])
    check(torch.pow, base[:, None], torch.tensor([0, 1, 2, 3, 10, 41, 63, 64, 1000003]))
    check(torch.pow, base[1:, None], torch.tensor([-1, -2, -3]))
    for exponent in (0, 1, 2, 5, 63):
        check(lambda x, exponent=exponent: x**exponent, base)
        check(lambda x, exponent=exponent: x.to(torch.int8) ** exponent, base)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, -1.7])
def test_power_with_known_exponent(exponent: float) -> None:
    x = torch.tensor(SPECIAL)
    check(lambda t: t**exponent, x)
    check(lambda t: t.to(torch.bfloat16) ** exponent, x.abs())


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_beyond_the_width(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 5, 100, 127] if dtype == torch.uint8 else [1, -5, 100, -127], dtype=dtype)
    amounts = torch.tensor([0, 1, 7, 8, 31, 63, 64, 100], dtype=dtype)
    check(lambda a, b: (a << b, a >> b), x[:, None], amounts[None])


@pytest.mark.parametrize(
    "function", [lambda a, b: a // b, lambda a, b: a % b, torch.fmod], ids=["floor_divide", "remainder", "fmod"]
)
def test_integer_division_by_zero_raises(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    a, b = torch.tensor([4, 5], device=DEVICE), torch.tensor([2, 0], device=DEVICE)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(a, b).cpu()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(a, 0).cpu()
    check(function, torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


def test_clamp_bounds() -> None:
    x = torch.tensor(SPECIAL)
    check(lambda t: (t.clamp(-1, 2), t.clamp(max=0.5), t.clamp(min=0.5), t.clamp(3, -3), t.clamp(NAN, 1)), x)
    check(lambda t, low: (t.clamp(low, low + 1), t.clamp(max=low), t.clamp_min(low), t.clamp_max(low)), x, x.flip(0))
    check(lambda t: (t.clamp(-1, 2), t.clamp(min=1.5)), torch.arange(-3, 4))


def test_lerp_addcmul_addcdiv() -> None:
    for dtype in (torch.float32, torch.float64):
        a, b, c = (values((3, 4), dtype, 1, 4) for _ in range(3))
        check(lambda a, b, c: (a.lerp(b, 0.3), a.lerp(b, 0.8), a.lerp(b, c), a.lerp(b, 1.0)), a, b, c)
        check(lambda a, b, c: (a.addcmul(b, c), a.addcmul(b[0], c, value=-0.5)), a, b, c)
        check(lambda a, b, c: (a.addcdiv(b, c), a.addcdiv(b[0], c, value=-0.5)), a, b, c)
        check(lambda a, b: (a.add(b, alpha=0.5), a.sub(b, alpha=2), torch.rsub(a, b, alpha=3)), a, b)


def test_rounding_to_decimals() -> None:
    x = values((50,), torch.float32, -100, 100)
    for decimals in (-1, 0, 1, 3):
        check(lambda t, decimals=decimals: t.round(decimals=decimals), x)


def test_frexp_and_nextafter_are_exact_on_bits() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = torch.tensor([0.0, -0.0, 1.0, -3.7, 1e-3, 1e4, INF, -INF, NAN], dtype=dtype)
        check(lambda t: tuple(torch.frexp(t))[:1], x)
        check(lambda t: torch.frexp(t[:6])[1], x)
    # Subnormal results: made of bits, so no flush to zero may touch them.
    x = torch.tensor([0.0, -0.0, 1.0, 1e-45, -1e-45, 1.1754944e-38])
    y = torch.tensor([1.0, -1.0, 0.0])
    got = torch.nextafter(to_device(x)[:, None], to_device(y)).cpu()
    assert torch.equal(got.view(torch.int32), torch.nextafter(x[:, None], y).view(torch.int32))


def test_nan_to_num_replacements() -> None:
    for dtype in FLOATS:
        check(lambda t: (t.nan_to_num(), t.nan_to_num(1.5), t.nan_to_num(0, 2, -3)), torch.tensor(SPECIAL, dtype=dtype))
    check(torch.nan_to_num, torch.tensor([1 + 2j, complex(NAN, INF), complex(-INF, 1)]))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_polygamma(n: int) -> None:
    for dtype in (torch.float32, torch.float64):
        check(lambda t: torch.polygamma(n, t), torch.tensor([0.1, 0.5, 1.0, 2.5, 10.0, 50.0, -0.5, -1.25], dtype=dtype))


POLYNOMIALS = [
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
]


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomials(name: str) -> None:
    function = getattr(torch.special, name)
    x = torch.tensor([-1.5, -1.0, -0.3, 0.0, 0.2, 0.75, 1.0, 2.0], dtype=torch.float64)
    degrees = torch.arange(-1, 12)
    check(function, x[:, None], degrees)
    check(lambda t: (function(t, 5), function(t, 0)), x)


def test_complex_from_parts() -> None:
    a, b = values((3, 4), torch.float32), values((3, 4), torch.float32)
    check(lambda a, b: (torch.complex(a, b), torch.polar(a.abs(), b)), a, b)
    z = values((3, 4), torch.complex64)
    check(lambda z: (z * z, z / (z + 2), z + 1j, z**2, z**0.5, z == z, z.conj_physical(), z.real + z.imag), z)


GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "arithmetic": lambda a, b: a * b + a / b - 2 * a + 3 / b,
    "powers": lambda a, b: a**2 + a**-1.5 + a**b + 2**b,
    "exponentials": lambda a, b: a.exp() + b.log() + a.expm1() + b.log1p() + a.exp2() + b.log2() + a.log10(),
    "trigonometric": lambda a, b: a.sin() + b.cos() + (a / 9).asin() + (b / 9).acos() + a.atan() + torch.atan2(a, b),
    "hyperbolic": lambda a, b: a.sinh() + b.cosh() + a.tanh() + b.asinh() + (a + 1).acosh() + (b / 9).atanh(),
    "roots": lambda a, b: a.sqrt() + b.rsqrt() + a.reciprocal() + torch.hypot(a, b),
    "extrema": lambda a, b: torch.maximum(a, b) + torch.minimum(a, b) + a.clamp(1, 3) + a.abs() + torch.fmax(a, b),
    "selection": lambda a, b: torch.where(a > b, a, b) + a.lerp(b, 0.3) + torch.lerp(a, b, a / 9),
    "special": lambda a, b: a.erf() + b.erfc() + (a / 9).erfinv() + a.lgamma() + b.digamma() + torch.special.i0e(a),
    "fused": lambda a, b: a.addcmul(b, b, value=0.5) + a.addcdiv(a, b, value=2) + torch.xlogy(a, b),
    "logarithms": lambda a, b: torch.logaddexp(a, b) + torch.logaddexp2(a, b) + (a / 9).logit() + torch.sinc(b),
    "division": lambda a, b: a % b + torch.fmod(a, b) + torch.div(a, b, rounding_mode="floor") * b,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    a, b = values((3, 1), torch.float32, 0.5, 4), values((4,), torch.float32, 0.5, 4)

    def run(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        result = GRADIENTS[name](a, b)
        return (result.detach(), *torch.autograd.grad(result.sum(), (a, b)))

    assert_matches(run(*to_device([a, b])), run(a, b))


@pytest.mark.parametrize("divisor", [3.0, 41.0, 1e-3, 3e38, float("inf"), float("nan"), 0.0])
@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_division_by_one_number_is_correctly_rounded(divisor: float, mode: str | None) -> None:
    """Bit for bit: compilers like to multiply by the reciprocal, which makes 82 / 41 a little less than 2."""
    x = torch.cat((torch.arange(1.0, 600.0), torch.tensor([3e38, -1e38, 0.0, float("inf"), float("nan")])))
    as_number = torch.div(x.to(DEVICE), divisor, rounding_mode=mode)
    as_tensor = torch.div(x.to(DEVICE), torch.tensor(divisor).to(DEVICE), rounding_mode=mode)
    as_row = torch.div(x.to(DEVICE).view(2, -1), torch.full((2, 1), divisor).to(DEVICE), rounding_mode=mode)
    want = torch.div(x, torch.full_like(x, divisor), rounding_mode=mode)
    want = torch.where(want.abs() < torch.finfo(torch.float32).tiny, want * 0, want)  # XLA:CPU has no denormals
    for got in (as_number, as_tensor, as_row.flatten()):
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_number_of_addcmul_and_addcdiv_is_not_rounded_first(dtype: torch.dtype) -> None:
    """As in a step of RMSprop, whose 1 - alpha is no half number: the same bits as on the CPU."""
    drawn = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(4096, generator=drawn).to(dtype) for _ in range(3))
    for function in (torch.addcmul, torch.addcdiv):
        got = function(a.to(DEVICE), b.to(DEVICE), (c.abs() + 0.5).to(DEVICE), value=1 - 0.99)
        assert torch.equal(got.cpu(), function(a, b, c.abs() + 0.5, value=1 - 0.99))
