"""scaled_dot_product_attention with its gradients, against the definition evaluated on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from gradients import check_gradients, leaf
from helpers import DEVICE, assert_matches
from torch import Tensor
from torch.nn import functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Narrow floats round the probabilities before the second product, as the CPU's flash kernel does.
TOLERANCE = {
    torch.float32: {"rtol": 1.3e-6, "atol": 1e-5},
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 2e-2},
    torch.float16: {"rtol": 2e-3, "atol": 4e-3},
}


def operands(
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    width: int = 16,
    value_width: int = 16,
    *,
    key_heads: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    key_heads = key_heads or heads
    return (
        leaf(batch, heads, rows, width),
        leaf(batch, key_heads, keys, width),
        leaf(batch, key_heads, keys, value_width),
    )


def compare(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype, **options) -> None:
    """Results and gradients in `dtype` on the device, against the mathematical definition in float64."""

    def run(device: str, dtype: torch.dtype, *inputs: Tensor) -> list[Tensor]:
        def moved(x: Tensor) -> Tensor:
            kept = x.dtype == torch.bool
            return x.detach().to(device, x.dtype if kept else dtype).requires_grad_(x.requires_grad)

        arguments = [moved(x) for x in inputs]
        out = F.scaled_dot_product_attention(*arguments, **options)
        wanted = [x for x in arguments if x.requires_grad]
        return [out, *torch.autograd.grad(out, wanted, weight.to(device, dtype))]

    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    weight = torch.randn(*q.shape[:-1], v.shape[-1])
    rounded = [
        x if x.dtype == torch.bool else x.detach().to(dtype).double().requires_grad_(x.requires_grad) for x in inputs
    ]
    weight = weight.to(dtype)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = run("cpu", torch.float64, *rounded)
    got = run(DEVICE, dtype, *inputs)
    tolerance = TOLERANCE[dtype]
    assert_matches(got[0], want[0].to(dtype), **tolerance)
    if dtype == torch.float32:
        # The probabilities come back from a float32 logsumexp, one rounding more than the forward pass has.
        tolerance = {"rtol": 1e-5, "atol": 2e-5}
    assert_matches(got[1:], [w.to(dtype) for w in want[1:]], **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("rows, keys", [(8, 8), (5, 9), (9, 5), (1, 7)])
def test_sizes(dtype: torch.dtype, causal: bool, rows: int, keys: int) -> None:
    compare(*operands(2, 3, rows, keys, 16, 8), dtype=dtype, is_causal=causal)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scale(dtype: torch.dtype) -> None:
    compare(*operands(2, 2, 6, 6), dtype=dtype, scale=0.3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("key_heads", (1, 2, 4))
def test_grouped_queries(dtype: torch.dtype, key_heads: int) -> None:
    compare(*operands(2, 4, 6, 7, key_heads=key_heads), dtype=dtype, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("sizes", [(6, 7), (1, 7), (2, 1, 6, 7), (2, 3, 6, 7), (2, 1, 1, 7), (1, 3, 6, 1)])
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_bias(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    compare(*operands(2, 3, 6, 7), leaf(*sizes), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_boolean_mask(dtype: torch.dtype) -> None:
    mask = torch.rand(2, 1, 6, 7) < 0.6
    mask[..., 0] = True
    compare(*operands(2, 3, 6, 7), mask, dtype=dtype)


def test_rows_without_visible_keys_are_zero() -> None:
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[2] = False
    q, k, v = (x.detach().float().to(DEVICE).requires_grad_() for x in operands(2, 3, 6, 7))
    out = F.scaled_dot_product_attention(q, k, v, mask.to(DEVICE))
    assert (out[:, :, 2] == 0).all().item()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(torch.isfinite(g).all().item() for g in gradients)
    assert (gradients[0][:, :, 2] == 0).all().item()


@pytest.mark.parametrize("causal", (False, True))
def test_dropout(causal: bool) -> None:
    """The kept probabilities, read through an identity value, explain the result and its gradients."""
    q, k, v = operands(2, 2, 16, 16)
    identity = torch.eye(16, dtype=torch.float64).expand(2, 2, 16, 16)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=causal)

    weights = run(q.detach().to(DEVICE), k.detach().to(DEVICE), identity.to(DEVICE)).cpu()
    visible = torch.ones(16, 16, dtype=torch.bool).tril() if causal else torch.ones(16, 16, dtype=torch.bool)
    kept = (weights != 0)[..., visible].double().mean().item()
    assert abs(kept - 0.75) < 0.1

    def want(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT / math.sqrt(16)).masked_fill(~visible, -math.inf)
        return (torch.softmax(scores, -1) * (weights != 0) / 0.75) @ v

    grad = torch.randn(2, 2, 16, 16, dtype=torch.float64)
    expected = torch.autograd.grad(want(q, k, v), (q, k, v), grad)
    inputs = [x.detach().to(DEVICE).requires_grad_() for x in (q, k, v)]
    out = run(*inputs)
    assert_matches(out, want(q, k, v))
    assert_matches(torch.autograd.grad(out, inputs, grad.to(DEVICE)), expected)


def test_dropout_of_everything_and_new_draws() -> None:
    q, k, v = (x.detach().to(DEVICE) for x in operands(1, 2, 8, 8))
    assert (F.scaled_dot_product_attention(q, k, v, dropout_p=1.0) == 0).all().item()
    first, second = (F.scaled_dot_product_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first.cpu(), second.cpu())


def test_long_sequences_in_blocks() -> None:
    """More scores than are computed at once: 2 heads of 8,500 rows and 4,100 keys."""
    q, k, v = torch.randn(1, 2, 8500, 8), torch.randn(1, 1, 4100, 8), torch.randn(1, 1, 4100, 8)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    inputs = [x.requires_grad_() for x in (q, k, v)]
    # Sums of 8,500 terms: gradients of keys and values reach hundreds.
    check_gradients(run, *inputs, rtol=1e-4, atol=2e-3)


def test_views_and_three_dims() -> None:
    packed = torch.randn(2, 6, 3, 4, 8)
    q, k, v = packed.to(DEVICE).permute(2, 0, 3, 1, 4)
    want = F.scaled_dot_product_attention(*packed.permute(2, 0, 3, 1, 4))
    assert_matches(F.scaled_dot_product_attention(q, k, v), want)
    three = [torch.randn(4, 6, 8) for _ in range(3)]
    assert_matches(
        F.scaled_dot_product_attention(*(x.to(DEVICE) for x in three)), F.scaled_dot_product_attention(*three)
    )


def test_layer() -> None:
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    want = layer(x, x, x)
    layer = layer.to(DEVICE)
    assert_matches(layer(x.to(DEVICE), x.to(DEVICE), x.to(DEVICE)), want)


def test_the_front_end_takes_the_fused_operator() -> None:
    q, k, v = (x.detach().to(DEVICE).requires_grad_() for x in operands(1, 2, 4, 4))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert "FusedAttentionOverrideable" in type(out.grad_fn).__name__


@pytest.mark.parametrize("batched", ["query", "mask", "gradient"])
def test_under_vmap(batched: str) -> None:
    x, many, masks = torch.randn(2, 2, 5, 4), torch.randn(3, 2, 2, 5, 4), torch.rand(3, 5, 5) > 0.3

    def run(device: str) -> Tensor:
        attention = F.scaled_dot_product_attention
        here = x.to(device)
        if batched == "mask":
            return torch.vmap(lambda mask: attention(here, here, here, attn_mask=mask))(masks.to(device))
        if batched == "query":
            return torch.vmap(lambda q: attention(q, here, here, is_causal=True))(many.to(device))
        return torch.vmap(torch.func.grad(lambda q: attention(q, q, q).square().sum()))(many.to(device))

    assert_matches(run(DEVICE), run("cpu"))


def test_gradients_in_a_batch() -> None:
    x = torch.randn(1, 2, 3, 2)

    def jacobian(x: Tensor) -> Tensor:
        return torch.func.jacrev(lambda q: F.scaled_dot_product_attention(q, q, q))(x)

    assert_matches(jacobian(x.to(DEVICE)), jacobian(x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_for_sizes_that_change(dynamic: bool | None) -> None:
    torch._dynamo.reset()

    def attend(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    compiled = torch.compile(attend, backend="tpu", dynamic=dynamic)
    for rows in (4, 5, 9):
        arguments = [torch.randn(2, 4, rows, 8, requires_grad=True), torch.randn(2, 2, rows, 8, requires_grad=True)]
        placed = [x.detach().to(DEVICE).requires_grad_() for x in arguments]
        got, want = compiled(*placed), attend(*arguments)
        assert_matches(got, want)
        got.sum().backward()
        want.sum().backward()
        for here, there in zip(placed, arguments, strict=True):
            assert_matches(here.grad, there.grad)
