"""Autograd is PyTorch's own; these tests hold us to what it needs: views, in-place, hooks, double backward, modes."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_matches, check, each_mode, to_device  # noqa: F401
from torch import Tensor
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("each_mode")


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Value and gradients of a weighted sum of function(*inputs)."""
    leaves = [x.requires_grad_() for x in inputs]
    out = function(*leaves)
    weight = torch.arange(1, out.numel() + 1, dtype=out.dtype).reshape(out.shape).to(out.device) / out.numel()
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "mul_broadcast": (lambda a, b: a * b, ((3, 4), (4,))),
    "div": (lambda a, b: a / (b.abs() + 1), ((3, 4), (3, 1))),
    "matmul": (lambda a, b: a @ b, ((3, 4), (4, 5))),
    "bmm_broadcast": (lambda a, b: a @ b, ((2, 3, 4), (4, 5))),
    "mv": (lambda a, b: a @ b, ((3, 4), (4,))),
    "linear": (lambda x, w, b: F.linear(x, w, b), ((2, 3, 4), (5, 4), (5,))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), ((2, 3, 7, 7), (4, 3, 3, 3), (4,))),
    "conv2d_grouped": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), ((1, 4, 8, 8), (6, 2, 3, 3))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), ((2, 3, 4, 4), (3, 2, 3, 3))),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), ((2, 3, 8), (4, 3, 3))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), ((3, 5), (5,), (5,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 5), (4,), (4,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w), ((3, 5), (5,))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((6, 3, 4), (3,), (3,))),
    "softmax": (lambda x: F.softmax(x, -1), ((3, 5),)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), ((3, 5),)),
    "gelu": (lambda x: F.gelu(x), ((3, 5),)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), ((3, 5),)),
    "silu": (lambda x: F.silu(x), ((3, 5),)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ((2, 2, 5, 4),) * 3),
    "attention_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 2, 5, 4),) * 3),
    "attention_mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        ((2, 2, 5, 4),) * 3 + ((5, 5),),
    ),
    "embedding": (lambda w: F.embedding(torch.tensor([[0, 2, 2], [4, 1, 0]], device=w.device), w), ((5, 3),)),
    "index": (lambda x: x[torch.tensor([0, 2, 0], device=x.device)], ((4, 3),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 0], [2, 1]], device=x.device)), ((2, 3),)),
    "cat": (lambda a, b: torch.cat((a, b, a), 1), ((2, 3), (2, 2))),
    "stack": (lambda a, b: torch.stack((a, b), 1), ((2, 3), (2, 3))),
    "slices": (lambda x: x[1:, ::2] * x[:-1, 1::2], ((5, 6),)),
    "permute_view": (lambda x: x.permute(1, 0, 2).reshape(3, -1).view(3, 2, 4), ((2, 3, 4),)),
    "expand": (lambda x: x.expand(4, 3, 5) * 2, ((3, 1),)),
    "unfold": (lambda x: x.unfold(0, 3, 2), ((9,),)),
    "as_strided": (lambda x: x.as_strided((3, 3), (2, 1), 1) ** 2, ((12,),)),
    "reductions": (lambda x: x.sum(0) + x.mean(0) + x.var(0) + x.logsumexp(0), ((5, 3),)),
    "max_min": (lambda x: x.max(0).values + x.amin(0), ((5, 3),)),
    "norm": (lambda x: x.norm(dim=0) + x.norm(p=1, dim=0), ((5, 3),)),
    "cumsum": (lambda x: x.cumsum(0), ((5, 3),)),
    "where": (lambda a, b: torch.where(a > b, a * 2, b), ((3, 4), (3, 4))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 2, 7, 7),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), ((2, 2, 6, 6),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), ((2, 2, 7, 5),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), ((1, 2, 4, 4),)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)) + F.pad(x, (1, 2, 0, 1), mode="replicate"), ((1, 3, 4),)),
    "pow": (lambda a, b: (a.abs() + 0.5) ** b, ((3, 4), (3, 4))),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((2, 3, 4), (2, 5, 4))),
    "sort": (lambda x: x.sort(1).values * torch.arange(4, device=x.device), ((3, 4),)),
    "topk": (lambda x: x.topk(2, 1).values, ((3, 4),)),
    "tril": (lambda x: x.tril() + x.triu(1) * 2, ((4, 4),)),
    "roll_flip": (lambda x: x.roll(1, 0) * x.flip(1), ((3, 4),)),
    "index_put": (lambda x, v: x.clone().index_put((torch.tensor([0, 2], device=x.device),), v), ((4, 3), (2, 3))),
    "scatter_add": (
        lambda x, s: x.scatter_add(0, torch.tensor([[0, 1, 0], [2, 2, 2]], device=x.device), s),
        ((3, 3), (2, 3)),
    ),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.5) * x, ((3, 4),)),
    "prod": (lambda x: x.prod(1), ((3, 4),)),
    "smooth_l1": (lambda a, b: F.smooth_l1_loss(a, b, reduction="none"), ((3, 4), (3, 4))),
    "bce_logits": (lambda a: F.binary_cross_entropy_with_logits(a, torch.ones_like(a) * 0.3), ((3, 4),)),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, -100], device=x.device), label_smoothing=0.1),
        ((3, 4),),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    function, sizes = FUNCTIONS[name]
    inputs = [normal(*size, seed=i) for i, size in enumerate(sizes)]
    # Sums of a few dozen float32 products, in another order than the CPU's.
    check(lambda *x: gradients(function, *x), *inputs, rtol=1e-5, atol=1e-5)


def test_gradcheck_in_float64() -> None:
    def double(*sizes: int) -> Tensor:
        return normal(*sizes).double().to(DEVICE).requires_grad_()

    assert torch.autograd.gradcheck(lambda a, b: torch.tanh(a @ b).sum(1), (double(3, 4), double(4, 2)))
    assert torch.autograd.gradcheck(lambda x: F.layer_norm(x, (4,)), (double(2, 4),))
    assert torch.autograd.gradgradcheck(lambda x: torch.sigmoid(x) * x, (double(3),))


def test_double_backward() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        x, w = x.requires_grad_(), w.requires_grad_()
        (g,) = torch.autograd.grad(torch.tanh(x @ w).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), w)[0]

    check(run, normal(3, 4), normal(4, 2, seed=1))


def test_accumulation_and_zero_grad() -> None:
    def run(x: Tensor) -> Tensor:
        x.requires_grad_()
        for i in range(3):
            (x * i).sum().backward()
        kept = x.grad
        x.sum().backward()
        assert x.grad is kept
        return x.grad

    check(run, normal(3))


def test_inplace_on_views_rebases_history() -> None:
    def run(x: Tensor) -> list[Tensor]:
        x.requires_grad_()
        y = x * 2
        view = y[1:, ::2]
        view.mul_(3)
        y.t()[0].add_(x.sum())
        y.sum().backward()
        return [y.detach(), x.grad]

    check(run, normal(4, 4))


def test_inplace_on_leaf_and_saved_tensor_are_refused() -> None:
    for device in ("cpu", DEVICE):
        x = torch.ones(3, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            x.add_(1)
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_hooks_run_on_the_device() -> None:
    seen: list[str] = []
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: (seen.append(g.device.type), g * 10)[1])
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device.type))
    y.sum().backward()
    assert seen == [DEVICE, DEVICE] and x.grad.tolist() == [20, 20, 20]


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_custom_function() -> None:
    check(lambda x: gradients(_Square.apply, x), normal(3, 4))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_replays_dropout(reentrant: bool) -> None:
    """The recomputed forward draws the same numbers, or the gradient would not match the value."""
    x = normal(64, 64).to(DEVICE).requires_grad_()
    torch.manual_seed(3)
    out = checkpoint(lambda t: F.dropout(t * 3, 0.5), x, use_reentrant=reentrant)
    out.sum().backward()
    kept = (out != 0).cpu()
    assert 0.4 < kept.float().mean() < 0.6
    assert torch.equal((x.grad != 0).cpu(), kept)


def test_saved_tensor_hooks_offload() -> None:
    x = normal(8, 8).to(DEVICE).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(DEVICE)):
        y = (x.exp() * x).sum()
    y.backward()
    assert_matches(x.grad, (x.detach().cpu().exp() * (1 + x.detach().cpu())))


def test_no_grad_inference_mode_and_requires_grad() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference()
        assert y[1:].add_(1).tolist() == [3, 3]
    assert (x.detach() * 2).requires_grad is False
    assert (x * 2).grad_fn is not None


def test_anomaly_mode_names_the_forward_line() -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=True), pytest.warns(UserWarning, match="test_autograd.py"):
        x = torch.zeros(2, device=DEVICE, requires_grad=True)
        y = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="nan"):
            y.backward()


def test_backward_frees_the_graph() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    middle = x * 2
    out = middle.exp()
    gone = weakref.ref(middle)
    del middle
    out.sum().backward()
    del out
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    x, w = normal(4, 8).to(DEVICE).requires_grad_(), normal(6, 8, seed=1).to(DEVICE).requires_grad_()
    with torch.autocast(DEVICE, dtype=dtype):
        hidden = F.linear(x, w)
        probability = hidden.softmax(-1)
        loss = F.mse_loss(probability, torch.zeros_like(probability))
    assert (hidden.dtype, probability.dtype, loss.dtype) == (dtype, torch.float32, torch.float32)
    loss.backward()
    assert w.grad.dtype == torch.float32 and w.grad.abs().sum() > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ w.t()).dtype == torch.float32


def test_grad_scaler_skips_infinite_steps() -> None:
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    p = torch.ones(3, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert p.tolist() == [-1, -1, -1] and scaler.get_scale() == 512.0


def test_functional_transforms() -> None:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ w).sum()

    def run(w: Tensor, x: Tensor) -> list[Tensor]:
        from torch.func import grad, jacrev, vmap

        return [grad(loss)(w, x), vmap(grad(loss), (None, 0))(w, x[:, None]), jacrev(lambda w: torch.tanh(x @ w))(w)]

    check(run, normal(4, 2), normal(3, 4, seed=1))


def test_forward_mode() -> None:
    import torch.autograd.forward_ad as forward

    def run(x: Tensor, t: Tensor) -> list[Tensor]:
        with forward.dual_level():
            out = torch.sin(forward.make_dual(x, t)) * 2
            return list(forward.unpack_dual(out))

    check(run, normal(3), normal(3, seed=1))


def test_requires_grad_copies_across_devices() -> None:
    """`.to` is differentiable: a gradient flows back to the leaf's device."""
    x = normal(3).requires_grad_()
    (x.to(DEVICE) * torch.arange(3.0, device=DEVICE)).sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [0, 1, 2]
    y = to_device(normal(3)).requires_grad_()
    (y.cpu() * 2).sum().backward()
    assert y.grad.device.type == DEVICE


PARTLY_WANTED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), ((2, 2, 5, 5), (4, 2, 3, 3), (4,))),
    "conv_transpose1d": (lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2), ((2, 3, 5), (3, 2, 3), (2,))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), ((3, 16), (16,), (16,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 8), (4,), (4,))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((3, 4, 8), (4,), (4,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (16,), w), ((3, 16), (16,))),
    "linear": (F.linear, ((3, 4), (5, 4), (5,))),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        ((1, 2, 4, 4), (1, 3, 3, 2)),
    ),
    "attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 5)),
    ),
    "prelu": (F.prelu, ((2, 3, 4), (3,))),
    "bilinear": (F.bilinear, ((3, 2), (3, 4), (5, 2, 4), (5,))),
    "embedding_bag_weights": (
        lambda w, p: F.embedding_bag(
            torch.tensor([[0, 2], [1, 1]], device=w.device), w, per_sample_weights=p, mode="sum"
        ),
        ((4, 3), (2, 2)),
    ),
}


@pytest.mark.parametrize("name", PARTLY_WANTED)
def test_gradients_of_some_arguments(name: str) -> None:
    """Every choice of the arguments that need a gradient: backward kernels compute what they are asked for."""
    function, shapes = PARTLY_WANTED[name]
    for wanted in itertools.product((True, False), repeat=len(shapes)):
        if not any(wanted):
            continue
        cpu = [torch.randn(s).requires_grad_(w) for s, w in zip(shapes, wanted, strict=True)]
        device = to_device(cpu)
        for arguments in (cpu, device):
            function(*arguments).sin().sum().backward()  # the sum of squares of what is normalised has no gradient
        for got, want in zip(device, cpu, strict=True):
            assert (got.grad is None) == (want.grad is None)
            if want.grad is not None:
                assert_matches(got.grad, want.grad)
