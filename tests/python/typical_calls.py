"""Typical eager calls of every family of lowerings, and a program that runs them and keeps what the engine emits.

    TORCH_TPU_DUMP_DIR=FOLDER python tests/python/typical_calls.py MODE DTYPE CALL...

leaves the programs in FOLDER, and a file ``calls.json`` that says which call emitted each first. Sizes are small and
odd: a compiler for hardware pads them, which is where it can go wrong.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = "tpu"
CALLS: dict[str, Callable[[torch.dtype], object]] = {}


def call(function: Callable[[torch.dtype], object]) -> Callable[[torch.dtype], object]:
    """Adds a call. It is named after the file of csrc/lowering whose rows it needs; two underscores begin what tells
    calls of one file apart."""
    CALLS[function.__name__] = function
    return function


def floats(*sizes: int, dtype: torch.dtype) -> Tensor:
    """A leaf that wants a gradient. Made on the host, so that no program is emitted for it."""
    return torch.randn(sizes).to(dtype).to(DEVICE).requires_grad_()


def positive(*sizes: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(sizes) + 0.5).to(dtype).to(DEVICE)


def integers(limit: int, *sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(limit, sizes, dtype=dtype).to(DEVICE)


def backward(result: Tensor | Sequence[Tensor]) -> None:
    """Gradients of everything that wants one. The gradient of the result comes from the host. Ends with a flush while
    the gradients are held: in fused mode what nobody holds any more is not computed."""
    results = [result] if isinstance(result, Tensor) else list(result)
    results = [r for r in results if r.requires_grad]
    torch.autograd.backward(results, [torch.ones(r.shape, dtype=r.dtype).to(DEVICE) for r in results])
    torch.tpu.synchronize()


# ---- elementwise


@call
def elementwise_arithmetic(dtype: torch.dtype) -> object:
    x, y = floats(3, 5, dtype=dtype), floats(5, dtype=dtype)
    backward(torch.addcdiv(x * y - 2, x, y.abs() + 1, value=0.5) / 3 + x**3)
    with torch.no_grad():
        x.mul_(2).clamp_(-1, 1)
        return torch.where(x > y, x, y), x.to(torch.int32), x.floor_divide(y), torch.lerp(x, y, 0.3), x == y


@call
def elementwise_math(dtype: torch.dtype) -> object:
    x = floats(3, 5, dtype=dtype)
    p = positive(3, 5, dtype=dtype)
    backward(x.exp() + x.sin() + x.tanh() + x.erf() + x.atan() + (x * x).rsqrt() + torch.sigmoid(x))
    return p.log(), p.log1p(), p.lgamma(), p.digamma(), p.acosh(), torch.atan2(x, p), x.round(), x.isnan(), x.cosh()


@call
def elementwise_gamma(dtype: torch.dtype) -> object:
    p = positive(3, 5, dtype=torch.float32)
    return torch.special.gammainc(p, p + 1), torch.special.gammaincc(p, p + 1)


@call
def elementwise_implicit(dtype: torch.dtype) -> object:
    p = positive(3, 5, dtype=torch.float32)
    return torch._standard_gamma_grad(p, p + 0.5), torch._dirichlet_grad(p / 4, p, p + 1)


@call
def elementwise_polynomial(dtype: torch.dtype) -> object:
    x, n = positive(3, 5, dtype=torch.float32), integers(6, 3, 5)
    return torch.special.hermite_polynomial_h(x, n), torch.special.chebyshev_polynomial_t(x, 4)


@call
def elementwise_special(dtype: torch.dtype) -> object:
    p = positive(3, 5, dtype=torch.float32)
    return (
        torch.special.i0(p),
        torch.special.bessel_j0(p),
        torch.special.ndtri(p / 2),
        torch.special.zeta(p + 1, p),
        torch.special.polygamma(2, p),
        torch.special.erfcx(p),
    )


@call
def elementwise__integers(dtype: torch.dtype) -> object:
    i, j, b = integers(50, 3, 5), integers(50, 5) + 1, integers(2, 3, 5, dtype=torch.bool)
    k = integers(50, 3, 5, dtype=torch.int32)
    return i * j + k, k // 3, k % 7, i & j, k << 2, ~b, b ^ (i > 20), i.to(dtype), torch.gcd(k, k + 6)


@call
def elementwise__division_int64(dtype: torch.dtype) -> object:
    return integers(50, 3, 5) // (integers(50, 5) + 1)


# ---- activations, losses


@call
def activation(dtype: torch.dtype) -> object:
    x = floats(3, 5, dtype=dtype)
    for function in (F.relu, F.gelu, F.silu, F.softplus, F.elu, F.hardswish, F.leaky_relu, F.mish, F.logsigmoid):
        backward(function(x))
    backward(F.gelu(x, approximate="tanh"))
    backward(F.prelu(x, floats(5, dtype=dtype)))
    return backward(F.glu(floats(3, 6, dtype=dtype)))


@call
def loss(dtype: torch.dtype) -> object:
    x, y = floats(4, 5, dtype=dtype), positive(4, 5, dtype=dtype)
    for function in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div):
        backward(function(x, y))
    return backward(F.binary_cross_entropy_with_logits(x, y))


@call
def loss_class(dtype: torch.dtype) -> object:
    x, target = floats(4, 5, dtype=dtype), integers(5, 4)
    backward(F.cross_entropy(x, target, ignore_index=2, label_smoothing=0.1))
    backward(F.cross_entropy(floats(2, 5, 3, 3, dtype=dtype), integers(5, 2, 3, 3)))
    return backward(F.multi_margin_loss(x.float(), target))


@call
def loss_ctc(dtype: torch.dtype) -> object:
    x = floats(7, 2, 5, dtype=torch.float32)
    sizes = torch.tensor([7, 6]).to(DEVICE), torch.tensor([3, 2]).to(DEVICE)
    return backward(F.ctc_loss(x.log_softmax(-1), integers(4, 2, 3) + 1, *sizes))


# ---- reductions, normalisation, sorting


@call
def reduction(dtype: torch.dtype) -> object:
    x = floats(3, 4, 5, dtype=dtype)
    backward(x.sum(1) + x.mean(1) + x.amax(1) + x.logsumexp(1) + x.prod(1))
    backward(x.max(1).values)
    return x.argmax(-1), x.min(), (x > 0).any(0), (x > 0).all(), x.count_nonzero(), integers(9, 3, 5).sum(), x.nansum(2)


@call
def reduction_norm(dtype: torch.dtype) -> object:
    x = floats(3, 4, 5, dtype=dtype)
    backward(x.var(1) + x.std(1) + x.norm(dim=1) + x.norm(p=3, dim=1))
    y = floats(4, 5, dtype=torch.float32)
    return backward(torch.cdist(y, y[:2]))


@call
def reduction_scan(dtype: torch.dtype) -> object:
    x = floats(3, 40, dtype=dtype)
    backward(x.cumsum(1) + x.logcumsumexp(1))
    return x.cumprod(1), x.cummax(1), integers(5, 3, 7).cumsum(0)


@call
def normalization(dtype: torch.dtype) -> object:
    x = floats(3, 4, 5, dtype=dtype)
    backward(x.softmax(-1))
    return backward(x.log_softmax(1))


@call
def normalization_layer(dtype: torch.dtype) -> object:
    x = floats(2, 6, 5, dtype=dtype)
    backward(F.layer_norm(x, (5,), floats(5, dtype=dtype), floats(5, dtype=dtype)))
    backward(F.rms_norm(x, (5,), floats(5, dtype=dtype)))
    return backward(F.group_norm(x, 3, floats(6, dtype=dtype), floats(6, dtype=dtype)))


@call
def normalization_batch(dtype: torch.dtype) -> object:
    norm = nn.BatchNorm2d(3).to(DEVICE, dtype)
    x = floats(2, 3, 5, 7, dtype=dtype)
    backward(norm(x))
    norm.eval()
    return backward(norm(x))


@call
def sorting(dtype: torch.dtype) -> object:
    x = floats(3, 17, dtype=dtype)
    backward(x.sort(-1, descending=True).values)
    backward(x.topk(4).values)
    return x.argsort(0), x.median(1), x.kthvalue(3), integers(9, 3, 5).mode(), integers(9, 20).sort(stable=True)


@call
def sorting_search(dtype: torch.dtype) -> object:
    x, edges = floats(3, 7, dtype=dtype), torch.linspace(-2, 2, 9).to(dtype).to(DEVICE)
    long = torch.linspace(-2, 2, 300).to(dtype).to(DEVICE)
    return torch.bucketize(x, edges), torch.searchsorted(long, x, right=True), torch.histc(x.detach().float(), 10)


# ---- linear algebra, attention, convolution


@call
def linear_algebra(dtype: torch.dtype) -> object:
    x, y = floats(3, 4, dtype=dtype), floats(4, 5, dtype=dtype)
    backward(F.linear(x @ y, floats(7, 5, dtype=dtype), floats(7, dtype=dtype)))
    backward(torch.baddbmm(floats(2, 3, 5, dtype=dtype), floats(2, 3, 4, dtype=dtype), floats(2, 4, 5, dtype=dtype)))
    backward(torch.einsum("bij,bkj->bik", floats(2, 3, 4, dtype=dtype), floats(2, 5, 4, dtype=dtype)))
    return torch.mv(x, y[:, 0]), torch.outer(x[0], y[0]), integers(9, 3, 4) @ integers(9, 4, 5)


@call
def linear_algebra_solve(dtype: torch.dtype) -> object:
    a = floats(2, 4, 4, dtype=torch.float32)
    square = a @ a.mT + 4 * torch.eye(4).to(DEVICE)
    backward(torch.linalg.cholesky(square))
    backward(torch.linalg.solve(square.detach().requires_grad_(), floats(2, 4, 3, dtype=torch.float32)))
    return torch.linalg.inv(square), torch.linalg.det(square), torch.linalg.solve_triangular(a.tril(), a, upper=False)


@call
def linear_algebra_qr(dtype: torch.dtype) -> object:
    a = floats(2, 5, 3, dtype=torch.float32)
    backward(torch.linalg.qr(a))
    packed, tau = torch.geqrf(a.detach())
    return torch.linalg.qr(a.mT, "complete"), torch.ormqr(packed, tau, a.detach(), transpose=True)


@call
def linear_algebra_exponential(dtype: torch.dtype) -> object:
    return backward(torch.linalg.matrix_exp(floats(2, 4, 4, dtype=torch.float32)))


@call
def linear_algebra_eigh(dtype: torch.dtype) -> object:
    a = floats(2, 5, 5, dtype=torch.float32)
    backward(torch.linalg.eigh(a + a.mT))
    return torch.linalg.eigvalsh(a)


@call
def linear_algebra_svd(dtype: torch.dtype) -> object:
    a = floats(2, 5, 3, dtype=torch.float32)
    backward(torch.linalg.svd(a, full_matrices=False).S)
    return torch.linalg.svd(a.mT), torch.linalg.pinv(a), torch.linalg.lstsq(a, floats(2, 5, 2, dtype=torch.float32))


@call
def linear_algebra_eig(dtype: torch.dtype) -> object:
    return torch.linalg.eig(floats(2, 4, 4, dtype=torch.float32)), torch.linalg.eigvals(
        floats(4, 4, dtype=torch.float32)
    )


@call
def linear_algebra_ldl(dtype: torch.dtype) -> object:
    a = floats(2, 4, 4, dtype=torch.float32).detach()
    return torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a + a.mT), a)


@call
def linear_algebra_grouped(dtype: torch.dtype) -> object:
    x, w = floats(8, 16, dtype=torch.bfloat16), floats(2, 16, 24, dtype=torch.bfloat16)
    return backward(torch._grouped_mm(x, w, offs=torch.tensor([3, 8], dtype=torch.int32).to(DEVICE)))


@call
def attention(dtype: torch.dtype) -> object:
    q, k, v = (floats(2, 4, 9, 16, dtype=dtype) for _ in range(3))
    backward(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    mask = torch.ones(9, 9, dtype=torch.bool).tril().to(DEVICE)
    backward(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1))
    kv = [floats(2, 2, 9, 16, dtype=dtype) for _ in range(2)]
    return backward(F.scaled_dot_product_attention(q, *kv, enable_gqa=True))


@call
def convolution(dtype: torch.dtype) -> object:
    x = floats(2, 4, 9, 11, dtype=dtype)
    backward(F.conv2d(x, floats(6, 4, 3, 3, dtype=dtype), floats(6, dtype=dtype), stride=2, padding=1))
    backward(F.conv2d(x, floats(4, 1, 3, 3, dtype=dtype), groups=4, dilation=2))
    backward(F.conv_transpose2d(x, floats(4, 6, 3, 3, dtype=dtype), stride=2, padding=1, output_padding=1))
    backward(F.conv1d(floats(2, 4, 9, dtype=dtype), floats(6, 4, 3, dtype=dtype)))
    return backward(F.conv3d(floats(1, 2, 5, 5, 5, dtype=dtype), floats(3, 2, 3, 3, 3, dtype=dtype)))


@call
def pooling(dtype: torch.dtype) -> object:
    x = floats(2, 3, 9, 9, dtype=dtype)
    backward(F.max_pool2d(x, 3, stride=2, padding=1))
    backward(F.max_pool2d(x, 3, stride=2, return_indices=True)[0])
    return backward(F.avg_pool2d(x, 3, stride=2, padding=1))


@call
def pooling_adaptive(dtype: torch.dtype) -> object:
    x = floats(2, 3, 9, 9, dtype=dtype)
    backward(F.adaptive_avg_pool2d(x, (4, 5)))
    return backward(F.adaptive_max_pool2d(x, (4, 5)))


@call
def interpolation(dtype: torch.dtype) -> object:
    x = floats(2, 3, 5, 7, dtype=dtype)
    backward(F.interpolate(x, scale_factor=2, mode="nearest"))
    backward(F.interpolate(x, (8, 9), mode="bilinear", align_corners=False))
    backward(F.interpolate(x, (8, 9), mode="bicubic", align_corners=True))
    return backward(F.interpolate(x, (3, 4), mode="bilinear", antialias=True))


@call
def interpolation_grid(dtype: torch.dtype) -> object:
    return backward(
        F.grid_sample(floats(2, 3, 5, 7, dtype=dtype), floats(2, 4, 4, 2, dtype=dtype), align_corners=False)
    )


# ---- indexing, shape, creation


@call
def indexing(dtype: torch.dtype) -> object:
    x, index = floats(6, 5, dtype=dtype), integers(6, 4)
    backward(x.index_select(0, index))
    backward(x.gather(1, integers(5, 6, 3)))
    backward(x.index_add(0, index, floats(4, 5, dtype=dtype)))
    return x.index_copy(0, index, x[:4]), torch.isin(integers(9, 4), index), x.index_fill(1, index[:2], 0)


@call
def indexing_advanced(dtype: torch.dtype) -> object:
    x, rows, columns = floats(6, 5, dtype=dtype), integers(6, 4), integers(5, 4)
    backward(x[rows, columns])
    backward(x[1:4, None, ::2])
    y = x.detach().clone()
    y[rows] = 1
    y[2, 1:3] += 2
    y.index_put_((rows, columns), y[0, :4].clone(), accumulate=True)
    y[y > 0] = 0
    return y.take(rows), y.as_strided((3, 3), (5, 2)), torch.nonzero_static(y, size=4), y.masked_fill(y < 0, 3)


@call
def indexing_embedding(dtype: torch.dtype) -> object:
    table = floats(11, 5, dtype=dtype)
    backward(F.embedding(integers(11, 2, 7), table, padding_idx=3))
    offsets = torch.tensor([0, 3, 4]).to(DEVICE)
    return backward(F.embedding_bag(integers(11, 9), floats(11, 5, dtype=torch.float32), offsets, mode="mean"))


@call
def indexing_scatter(dtype: torch.dtype) -> object:
    x, index = floats(6, 5, dtype=dtype), integers(6, 4, 5)
    backward(x.scatter_add(0, index, floats(4, 5, dtype=dtype)))
    with torch.no_grad():
        return x.scatter(0, index, 1.0), x.scatter_reduce(0, index, x[:4], "amax"), x.scatter(0, index, x[:4])


@call
def segment(dtype: torch.dtype) -> object:
    x, lengths = floats(9, 5, dtype=torch.float32), torch.tensor([4, 0, 5]).to(DEVICE)
    for reduce in ("sum", "mean", "max"):
        backward(torch.segment_reduce(x, reduce, lengths=lengths, unsafe=True))
    return None


@call
def shape(dtype: torch.dtype) -> object:
    x = floats(2, 4, 6, 6, dtype=dtype)
    backward(torch.cat([x, x.flip(2)], 1).roll(2, -1))
    backward(F.pixel_shuffle(x, 2) + F.unfold(x, 3, padding=1).sum())
    backward(torch.stack([x, x]).permute(2, 0, 1, 3, 4).tril().repeat(1, 2, 1, 1, 1))
    return x.diagonal(0, 2, 3).contiguous(), torch.block_diag(x[0, 0], x[0, 1]), x.unfold(2, 3, 2).contiguous()


@call
def padding(dtype: torch.dtype) -> object:
    x = floats(2, 3, 5, 7, dtype=dtype)
    for mode in ("constant", "reflect", "replicate", "circular"):
        backward(F.pad(x, (1, 2, 2, 1), mode=mode))
    return None


@call
def creation(dtype: torch.dtype) -> object:
    x = torch.full((3, 5), 2.0, dtype=dtype, device=DEVICE)
    return (
        x.fill_(3),
        torch.arange(2, 11, 3, device=DEVICE),
        torch.linspace(0, 1, 7, dtype=dtype, device=DEVICE),
        torch.eye(4, dtype=dtype, device=DEVICE),
        torch.logspace(0, 1, 5, device=DEVICE),
        torch.ones_like(x).triu(1),
        torch.empty_like(x).copy_(x.t().contiguous().t()),
    )


# ---- random numbers


@call
def random(dtype: torch.dtype) -> object:
    x = torch.rand(3, 5, dtype=dtype, device=DEVICE)
    backward(F.dropout(floats(3, 5, dtype=dtype), 0.3))
    return (
        torch.randn_like(x),
        torch.randint(7, (9,), device=DEVICE),
        torch.randperm(11, device=DEVICE),
        torch.bernoulli(x),
        x.clone().exponential_(),
        torch.multinomial(x.float(), 3),
        x.clone().cauchy_(),
    )


@call
def random_rejection(dtype: torch.dtype) -> object:
    p = positive(3, 5, dtype=torch.float32)
    return torch._standard_gamma(p), torch.poisson(p * 20), torch.binomial(p * 9, p / 2)


@call
def fft(dtype: torch.dtype) -> object:
    x = floats(3, 12, dtype=torch.float32)
    backward(torch.fft.irfft(torch.fft.rfft(x), 12))
    return torch.fft.fft2(torch.fft.ifft(x.detach()))


# ---- optimizers, whole models


def steps(dtype: torch.dtype, kind: Callable[..., torch.optim.Optimizer], **options: object) -> None:
    weights = [nn.Parameter(floats(*sizes, dtype=dtype).detach()) for sizes in ((4, 3), (5,))]
    optimizer = kind(weights, **options)
    for weight in weights:
        weight.grad = positive(*weight.shape, dtype=dtype)
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    torch.tpu.synchronize()


@call
def optimizer(dtype: torch.dtype) -> object:
    steps(dtype, torch.optim.AdamW, lr=0.01, weight_decay=0.1, fused=True)
    steps(dtype, torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
    steps(dtype, torch.optim.Adam, lr=0.01, foreach=True)
    return steps(dtype, torch.optim.RMSprop, lr=0.01, foreach=False)


@call
def model__recurrent(dtype: torch.dtype) -> object:
    lstm = nn.LSTM(5, 6, num_layers=2, batch_first=True).to(DEVICE, dtype)
    return backward(lstm(floats(2, 4, 5, dtype=dtype))[0])


@call
def model__transformer(dtype: torch.dtype) -> object:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, activation="gelu").to(DEVICE, dtype)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01, foreach=True)
    backward(layer(floats(2, 7, 16, dtype=dtype)).square().mean())
    return optimizer.step()


def file_of(name: str) -> str:
    """The file of csrc/lowering that a call is for."""
    return name.partition("__")[0]


def main() -> None:
    mode, dtype, *names = sys.argv[1:]
    folder = pathlib.Path(os.environ["TORCH_TPU_DUMP_DIR"])
    torch.tpu.set_eager_mode(mode)
    emitted: dict[str, str] = {}
    for name in names:
        torch.manual_seed(0)
        kept = CALLS[name](getattr(torch, dtype))  # alive until the flush, as in backward()
        torch.tpu.synchronize()
        del kept
        for path in folder.glob("*.mlir"):
            emitted.setdefault(path.name, name)
    (folder / "calls.json").write_text(json.dumps(emitted, indent=1))


if __name__ == "__main__":
    main()
