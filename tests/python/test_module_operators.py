"""Operators behind modules that have a kernel for each device and no description in PyTorch: attention in evaluation,
jagged batches, products of narrow types, and helpers of other operators."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, assert_matches, check
from torch import Tensor, nn

aten = torch.ops.aten


@pytest.mark.parametrize("masked", ["no", "keys", "pairs"])
@pytest.mark.parametrize(("need_weights", "average"), [(False, True), (True, True), (True, False)])
def test_attention_module_in_evaluation(masked: str, need_weights: bool, average: bool) -> None:
    results = {}
    x = torch.randn(2, 5, 8)
    keys = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]], dtype=torch.bool)
    masks = {"no": {}, "keys": {"key_padding_mask": keys}, "pairs": {"attn_mask": torch.ones(5, 5).triu(1).bool()}}
    for device in ("cpu", DEVICE):
        torch.manual_seed(5)
        module = nn.MultiheadAttention(8, 2, batch_first=True).to(device).eval()
        with torch.no_grad():
            y = x.to(device)
            mask = {name: m.to(device) for name, m in masks[masked].items()}
            out = module(y, y, y, need_weights=need_weights, average_attn_weights=average, **mask)
            results[device] = [v for v in out if v is not None]
    assert_matches(results[DEVICE], results["cpu"])


def test_attention_operators() -> None:
    x, w, b = torch.randn(2, 3, 8), torch.randn(24, 8), torch.randn(24)
    check(lambda x, w, b: aten._transform_bias_rescale_qkv(x @ w.t(), b, 2), x, w, b)
    other, p, c = torch.randn(2, 3, 8), torch.randn(8, 8), torch.randn(8)

    def attend(x: Tensor, other: Tensor, w: Tensor, b: Tensor, p: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return aten._native_multi_head_attention(x, other, other, 8, 2, w, b, p, c)

    check(attend, x, other, w, b, p, c)


@pytest.mark.parametrize("rest", [(), (3,), (2, 3)])
@pytest.mark.parametrize("length", [2, 4, 6])
def test_jagged(rest: tuple[int, ...], length: int) -> None:
    values, offsets = torch.randn(7, *(rest or (1,))), torch.tensor([0, 4, 4, 7])
    check(lambda v, o: aten._jagged_to_padded_dense_forward(v, [o], [length], -1.5), values, offsets)
    dense = torch.randn(3, length, *(rest or (1,)))
    if length >= 4:  # the longest
        check(lambda d, o: aten._padded_dense_to_jagged_forward(d, [o], 7), dense, offsets)
        check(lambda d, o: aten._padded_dense_to_jagged_forward(d, [o]), dense, offsets)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_product_of_float8(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 32).to(dtype), torch.randn(16, 32).to(dtype).t()
    scales = torch.tensor(0.5), torch.tensor(3.0)
    want = ((a.double() * 0.5) @ (b.double() * 3)).to(out_dtype)
    got = torch._scaled_mm(a.to(DEVICE), b.to(DEVICE), *(s.to(DEVICE) for s in scales), out_dtype=out_dtype)
    assert_matches(got, want)
    rows, columns = torch.rand(16, 1), torch.rand(1, 16)
    want = ((a.double() * rows) @ (b.double() * columns)).to(out_dtype)
    got = torch._scaled_mm(a.to(DEVICE), b.to(DEVICE), rows.to(DEVICE), columns.to(DEVICE), out_dtype=out_dtype)
    assert_matches(got, want)
    with pytest.raises(NotImplementedError, match="scale"):
        torch._scaled_mm(a.to(DEVICE), b.to(DEVICE), torch.ones(3).to(DEVICE), columns.to(DEVICE), out_dtype=out_dtype)


def test_product_with_int8_weights() -> None:
    x, w = torch.randn(4, 32).bfloat16(), torch.randint(-127, 128, (32, 32), dtype=torch.int8)
    check(torch._weight_int8pack_mm, x, w, torch.rand(32).bfloat16())


def test_helpers() -> None:
    x = torch.randn(4, 5)
    for op in (aten._cummax_helper, aten._cummin_helper):

        def run(x: Tensor, values: Tensor, indices: Tensor, op: object = op) -> None:
            op(x, values, indices, 1)  # type: ignore[operator]

        check(run, x, torch.empty(4, 5), torch.empty(4, 5, dtype=torch.int64))
    factor = torch.linalg.cholesky(x @ x.t() + torch.eye(4))
    check(lambda b, f: aten._cholesky_solve_helper(b, f, False), torch.randn(4, 2), factor)
    check(aten._compute_linear_combination, torch.randn(3, 2, 2), torch.randn(5, 3))
    check(aten._add_relu.Tensor, x, torch.randn(5))


def test_unique_forms() -> None:
    x = torch.tensor([3, 1, 1, 2, 2, 3, 3])
    check(lambda x: aten._unique(x, True, True), x)
    rows = torch.stack([x, x % 2], 1)
    check(lambda rows: aten.unique_dim_consecutive(rows, 0, True, True), rows)


def test_ctc_loss_with_lengths_on_the_device() -> None:
    x, targets = torch.randn(6, 2, 5), torch.randint(1, 5, (2, 3))
    lengths = torch.tensor([6, 5]), torch.tensor([3, 2])

    def run(x: Tensor, targets: Tensor, inputs: Tensor, sizes: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        loss = aten._ctc_loss.Tensor(x.log_softmax(-1), targets, inputs, sizes)[0].sum()
        return [loss.detach(), *torch.autograd.grad(loss, x)]

    check(run, x, targets, *lengths)


def test_statistics_of_batch_norm() -> None:
    x = torch.randn(3, 4, 5)
    check(lambda x, m, v: torch.batch_norm_update_stats(x, m, v, 0.2), x, torch.rand(4), torch.rand(4))


def test_out_forms_of_batch_norm() -> None:
    x, w, b = torch.randn(3, 4, 5), torch.rand(4), torch.rand(4)

    def run(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor, *out: Tensor) -> None:
        aten._native_batch_norm_legit.out(
            x, w, b, mean, var, True, 0.1, 1e-5, out=out[0], save_mean=out[1], save_invstd=out[2]
        )

    check(run, x, w, b, torch.rand(4), torch.rand(4), torch.empty(3, 4, 5), torch.empty(4), torch.empty(4))


def test_out_forms() -> None:
    x, grad = torch.randn(1, 2, 4, 4, 4), torch.randn(1, 2, 2, 2, 2)

    def pool(grad: Tensor, x: Tensor, into: Tensor) -> Tensor:
        return aten.adaptive_avg_pool3d_backward.grad_input(grad, x, grad_input=into)

    check(pool, grad, x, torch.empty(0))
    noise = torch.empty(1, 2, 4, 4, 4)
    check(lambda x, n, o: aten.rrelu_with_noise.out(x, n, 0.1, 0.3, False, out=o), x, noise.zero_(), torch.empty(0))


def test_assertions() -> None:
    yes, no = torch.tensor(True).to(DEVICE), torch.tensor([0.0]).to(DEVICE)
    torch._assert_async(yes)
    torch._assert_async(yes, "never")
    with pytest.raises(RuntimeError, match="single nonzero value"):
        torch._assert_async(no)
    with pytest.raises(RuntimeError, match="told so"):
        torch._assert_async(no, "told so")
    token = torch.ones(1).to(DEVICE)
    assert_matches(torch.ops.aten._functional_assert_async.msg(yes, "never", token), torch.ones(1))


def test_is_set_to() -> None:
    x = torch.randn(4, 5).to(DEVICE)
    assert x.is_set_to(x.view(4, 5)) and x.is_set_to(torch.empty(0, device=DEVICE).set_(x))
    assert not x.is_set_to(x.t()) and not x.is_set_to(x[1:]) and not x.is_set_to(x.clone())


def test_convolution_below_the_usual_entry() -> None:
    """What traced programs call; for a device that is none of PyTorch's own it goes through an operator of its own."""

    def run(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        leaves = [v.detach().requires_grad_() for v in (x, w, b)]
        y = torch._convolution(*leaves, [1], [1], [1], False, [0], 1, False, False, False, False)
        return [y.detach(), *torch.autograd.grad(y.sum(), leaves)]

    check(run, torch.randn(2, 4, 9), torch.randn(6, 4, 3), torch.randn(6))


def test_products_that_keep_their_accumulators() -> None:
    """out_dtype of half products, which the CPU does not have."""
    a, b, c = torch.randn(2, 3, 4).bfloat16(), torch.randn(2, 4, 5).bfloat16(), torch.randn(2, 3, 5)
    want = torch.baddbmm(c, a.float(), b.float())
    got = torch.baddbmm(c.to(DEVICE), a.to(DEVICE), b.to(DEVICE), out_dtype=torch.float32)
    assert_matches(got, want)


def test_dropout_gradient_of_integers() -> None:
    grad, mask = torch.arange(6).reshape(2, 3), torch.tensor([[True, False, True]] * 2)
    check(lambda g, m: aten.native_dropout_backward(g, m, 1.5), grad, mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matrix_exponential_of_half_types(dtype: torch.dtype) -> None:
    """Rounded once; the CPU rounds at each step."""
    x = (torch.randn(2, 4, 4) / 2).to(dtype)
    assert_matches(torch.linalg.matrix_exp(x.to(DEVICE)), torch.linalg.matrix_exp(x.double()).to(dtype))
