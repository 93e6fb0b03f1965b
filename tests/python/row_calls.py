"""Direct calls of operators that PyTorch's operator database does not reach: overloads that take numbers, functional
forms of what is mutated, fused optimizers, operators behind modules and random numbers. For row_programs.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typical_calls import DEVICE, integers

aten = torch.ops.aten
CALLS: dict[str, Callable[[torch.dtype], object]] = {}


def call(function: Callable[[torch.dtype], object]) -> Callable[[torch.dtype], object]:
    """Adds calls that take a floating dtype."""
    CALLS[function.__name__] = function
    return function


def numbers(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Between 0.5 and 1.5, made on the host."""
    return (torch.rand(sizes) + 0.5).to(dtype).to(DEVICE)


# ---- elementwise


@call
def shifts(dtype: torch.dtype) -> object:
    x, y = integers(9, 3, 5), integers(4, 5)
    aten.__lshift__.Scalar(x, 2), aten.__lshift__.Tensor(x, y), aten.__rshift__.Scalar(x, 2)
    aten.__rshift__.Tensor(x, y)
    for op in (aten.bitwise_left_shift, aten.bitwise_right_shift):
        op.Tensor(x, y), op.Tensor_Scalar(x, 2), op.Scalar_Tensor(2, y)
    for op in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor):
        op.Tensor(x, y), op.Scalar(x, 6), op.Scalar_Tensor(6, y)
    return aten.gcd(x, y), aten.lcm(x, y), aten.bitwise_not(x)


@call
def with_a_number(dtype: torch.dtype) -> object:
    x = numbers(3, 5, dtype=dtype)
    aten.clamp_max(x, 1.0), aten.clamp_min(x, 1.0), aten.div.Scalar_mode(x, 0.3, rounding_mode="floor")
    aten.div.Scalar(x, 0.3), aten.floor_divide.Scalar(x, 0.3), aten.fmod.Scalar(x, 0.3), aten.mul.Scalar(x, 0.3)
    aten.remainder.Scalar_Tensor(2.0, x), aten.copysign.Scalar(x, -1.0), aten.fill.Tensor(x, x[0, 0])
    for op in (aten.special_xlog1py, aten.special_zeta):
        op.other_scalar(x, 2.0), op.self_scalar(2.0, x)
    return aten.xlogy.Scalar_Other(x, 2.0), aten.xlogy.Scalar_Self(2.0, x)


@call
def polynomials(dtype: torch.dtype) -> object:
    x = numbers(3, 5, dtype=torch.float32)
    for kind in (
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
        "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
        "legendre_polynomial_p",
    ):  # fmt: skip
        op = getattr(aten, f"special_{kind}")
        op.n_scalar(x, 3), op.x_scalar(0.5, x * 4)
    return None


@call
def derivatives(dtype: torch.dtype) -> object:
    x, dx = numbers(4, 6, dtype=torch.float32), numbers(4, 6, dtype=torch.float32)
    half = numbers(4, 3, dtype=torch.float32)
    return aten.glu_jvp(half, x, dx, 1), aten.glu_backward_jvp(x, half, x, half, dx, 1)


# ---- reductions, normalization, products


@call
def reductions(dtype: torch.dtype) -> object:
    x = numbers(3, 5, dtype=dtype)
    aten._aminmax(x), aten._aminmax.dim(x, 1), aten._logcumsumexp(x, 1), aten._euclidean_dist(x.float(), x.float())
    aten.count_nonzero.dim_IntList(x, [1]), aten.norm.Scalar(x, 2), aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float32)
    return aten.norm.ScalarOpt_dim_dtype(x, 3, [0], True, dtype=torch.float32), aten.all.dims(x, [0]), aten.any.dims(x)


@call
def normalizations(dtype: torch.dtype) -> object:
    x, w, b = numbers(2, 3, 4, dtype=dtype), numbers(3, dtype=torch.float32), numbers(3, dtype=torch.float32)
    if dtype != torch.float32:
        w, b = w.to(dtype), b.to(dtype)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    mean, var = numbers(3, dtype=kept), numbers(3, dtype=kept)
    aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.1, 1e-5)
    aten._native_batch_norm_legit_no_training(x, w, b, mean, var, 0.1, 1e-5)
    aten._batch_norm_with_update_functional(x, w, b, mean, var, 0.1, 1e-5)
    aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)
    aten._batch_norm_no_update(x, w, b, mean, var, 0.1, 1e-5)
    mask = integers(2, 2, 3, 4, dtype=torch.bool)
    y = aten._masked_softmax(x, mask, 2, 2)
    aten._masked_softmax_backward(x, y, mask, 2)
    v, g = numbers(5, 3, dtype=torch.float32), numbers(5, 1, dtype=torch.float32)
    weight, norms = aten._weight_norm_interface(v, g, 0)
    return aten._weight_norm_interface_backward(weight, v, g, norms, 0)


@call
def products(dtype: torch.dtype) -> object:
    a, b, c = numbers(3, 4, dtype=dtype), numbers(4, 5, dtype=dtype), numbers(3, 5, dtype=dtype)
    aten._addmm_activation(numbers(5, dtype=dtype), a, b, use_gelu=True)
    wide, a, b = c.float(), a.bfloat16(), b.bfloat16()
    aten.mm.dtype(a, b, torch.float32), aten.addmm.dtype(wide, a, b, torch.float32)
    aten.bmm.dtype(a[None], b[None], torch.float32)
    aten.baddbmm.dtype(wide[None], a[None], b[None], torch.float32)
    offsets = torch.tensor([3, 8], dtype=torch.int32).to(DEVICE)
    aten._grouped_mm(numbers(8, 16, dtype=torch.bfloat16), numbers(2, 16, 24, dtype=torch.bfloat16), offsets)
    narrow = [torch.randint(-9, 9, sizes, dtype=torch.int8).to(DEVICE) for sizes in ((17, 16), (16, 24))]
    return aten._int_mm(*narrow)


@call
def convolutions(dtype: torch.dtype) -> object:
    x, w, b = numbers(2, 4, 9, dtype=dtype), numbers(6, 4, 3, dtype=dtype), numbers(6, dtype=dtype)
    y = aten.convolution_overrideable(x, w, b, [1], [1], [1], False, [0], 1)
    return aten.convolution_backward_overrideable(y, x, w, [1], [1], [1], False, [0], 1, [True, True, True])


@call
def attentions(dtype: torch.dtype) -> object:
    q, k, v = (numbers(2, 4, 9, 16, dtype=dtype) for _ in range(3))
    out = aten._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.0, True)
    names = (out[1], out[2], out[3], out[4], out[5])
    return aten._scaled_dot_product_fused_attention_overrideable_backward(
        q, q, k, v, None, [True, True, True, False], out[0], *names, 0.0, True, out[6], out[7]
    )


@call
def images(dtype: torch.dtype) -> object:
    x = numbers(1, 2, 5, 7, dtype=dtype)
    for kind in ("bicubic2d", "bilinear2d", "lanczos2d"):
        y = getattr(aten, f"_upsample_{kind}_aa").default(x, [3, 9], False)
        getattr(aten, f"_upsample_{kind}_aa_backward").default(y, [3, 9], [1, 2, 5, 7], False)
    for kind, sizes in (("1d", (7,)), ("2d", (5, 7)), ("3d", (2, 5, 7))):
        x, wanted = numbers(1, 2, *sizes, dtype=dtype), [2 * size - 1 for size in sizes]
        for name in ("upsample_nearest", "_upsample_nearest_exact"):
            y = getattr(aten, name + kind).default(x, wanted)
            getattr(aten, f"{name}{kind}_backward").default(y, wanted, [1, 2, *sizes])
    return None


# ---- indexing, sorting, creation


@call
def indices(dtype: torch.dtype) -> object:
    x, index = numbers(6, 5, dtype=dtype), integers(6, 4, 5)
    aten.scatter.value_reduce(x, 0, index, 2.0, reduce="add"), aten.scatter.reduce(x, 0, index, x, reduce="multiply")
    aten.isin.Scalar_Tensor(2, index), aten.isin.Tensor_Scalar(index, 2)
    edges = torch.arange(5.0).to(DEVICE)
    aten.bucketize.Scalar(2.5, edges), aten.searchsorted.Scalar(edges, 2.5)
    # Without out= the result's size is data.
    repeats = torch.tensor([1, 0, 3]).to(DEVICE)
    aten.repeat_interleave.Tensor_out(repeats, output_size=4, out=torch.empty(4, dtype=torch.int64, device=DEVICE))
    table, offsets = numbers(11, 5, dtype=torch.float32), torch.tensor([0, 3, 4]).to(DEVICE)
    words = integers(11, 9)
    _, bag_of, sizes, largest = aten._embedding_bag(table, words, offsets, False, 2)
    gradient = numbers(3, 5, dtype=torch.float32)
    aten._embedding_bag_dense_backward(gradient, words, bag_of, sizes, largest, 11, False, 2, None)
    return aten.embedding_renorm_(table, words, 1.0, 2.0)


@call
def creations(dtype: torch.dtype) -> object:
    on = {"dtype": dtype, "device": DEVICE}
    torch.eye(3, **on), torch.eye(3, 4, **on), torch.linspace(0, 1, 5, **on), torch.logspace(0, 1, 5, **on)
    torch.linspace(0, 9, 5, dtype=torch.int64, device=DEVICE), torch.logspace(0, 9, 5, dtype=torch.int64, device=DEVICE)
    # Without out= these two are made of other overloads.
    torch.eye(3, out=torch.empty(0, **on)), torch.randperm(7, out=torch.empty(7, dtype=torch.int64, device=DEVICE))
    return torch.arange(1, 7, 2, **on), aten.range.step(1, 7, 2, **on)


@call
def paddings(dtype: torch.dtype) -> object:
    x = numbers(2, 3, 4, 5, dtype=dtype)
    for kind in ("reflection", "replication"):
        y = getattr(aten, f"{kind}_pad3d").default(x, [1] * 6)
        getattr(aten, f"{kind}_pad3d_backward").default(y, x, [1] * 6)
    return None


# ---- random numbers


@call
def random_numbers(dtype: torch.dtype) -> object:
    x, p = numbers(3, 5, dtype=dtype), numbers(3, 5, dtype=torch.float32) / 2
    generator = torch.Generator(DEVICE).manual_seed(3)
    aten.bernoulli(p), aten.bernoulli.p(x, 0.3), x.bernoulli_(0.3), x.bernoulli_(p), aten.binomial(p * 9, p)
    aten.poisson(p), aten._standard_gamma(p), aten._sample_dirichlet(p), x.random_(), x.random_(7), x.random_(3, 7)
    aten._standard_gamma_grad(p, p), aten._dirichlet_grad(p / 2, p, p + 1)
    x.uniform_(), x.normal_(), x.exponential_(), x.cauchy_(), x.geometric_(0.3), x.log_normal_()
    aten.normal.float_Tensor(0.5, x), aten.normal.Tensor_float(x, 0.5), aten.normal.Tensor_Tensor(x, x)
    aten.normal_functional(x), aten.multinomial(p, 2), aten.native_dropout(x, 0.3, True)
    aten.randperm(7, device=DEVICE), aten.randperm.generator(7, generator=generator, device=DEVICE)
    return aten.rrelu_with_noise(x, torch.zeros_like(x), 0.1, 0.3, True)


# ---- optimizers, losses


@call
def fused_optimizers(dtype: torch.dtype) -> object:
    def lists(count: int) -> list[list[Tensor]]:
        return [[numbers(3, 4, dtype=dtype), numbers(5, dtype=dtype)] for _ in range(count)]

    def steps() -> list[Tensor]:
        return [torch.tensor(2.0).to(DEVICE) for _ in range(2)]

    rate = torch.tensor(0.1).to(DEVICE)
    for overload, lr in (("default", 0.1), ("tensor_lr", rate)):
        for op in (aten._fused_adam_, aten._fused_adamw_):
            getattr(op, overload)(
                *lists(5), steps(),
                lr=lr, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=True, maximize=False,
            )  # fmt: skip
        getattr(aten._fused_adagrad_, overload)(
            *lists(3), steps(), lr=lr, lr_decay=0.1, weight_decay=0.1, eps=1e-8, maximize=False
        )
        getattr(aten._fused_sgd_, overload)(
            *lists(3),
            weight_decay=0.1, momentum=0.9, lr=lr, dampening=0.1, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
    return None


@call
def gradient_scaling(dtype: torch.dtype) -> object:
    found, scale = torch.zeros(1).to(DEVICE), torch.full((1,), 8.0).to(DEVICE)
    aten._amp_foreach_non_finite_check_and_unscale_([numbers(3, 5, dtype=dtype)], found, scale)
    tracker = torch.zeros(1, dtype=torch.int32).to(DEVICE)
    return aten._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2000)
