"""Operators behind modules, of which PyTorch has a kernel for each device and no description: attention of
nn.MultiheadAttention in evaluation, batches of sequences of different lengths, products of narrow types, statistics of
batch norms. Composed of operators that have rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# ---- attention of a sequence to itself


def _split_heads(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, length, 3 width] -> three of [batch, heads, length, width / heads], the queries divided by the square
    root of their width."""
    if qkv.is_nested:
        raise NotImplementedError("nested tensors are not supported on the tpu device")
    batch, length, width = qkv.shape
    if width % (3 * num_heads):
        raise RuntimeError(f"the width {width // 3} is no multiple of the {num_heads} heads")
    size = width // 3 // num_heads
    q, k, v = (qkv + qkv_bias).view(batch, length, 3, num_heads, size).permute(2, 0, 3, 1, 4).unbind(0)
    return (q / size**0.5).contiguous(), k.contiguous(), v.contiguous()


def _native_multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Output [batch, length, width], and the weights if they are needed. `mask_type` 0: the mask
    is [length, length]; 1: it is the padding of the keys, [batch, length]; 2: [batch, heads, length, length]. True
    means: do not look."""
    if query is not key or key is not value:
        if any(x.shape != query.shape for x in (key, value)):
            raise NotImplementedError("_native_multi_head_attention: keys and values with shapes of their own")
        weights = qkv_weight.chunk(3)
        qkv = torch.cat([x @ w.t() for x, w in zip((query, key, value), weights, strict=True)], -1)
    else:
        qkv = query @ qkv_weight.t()
    q, k, v = _split_heads(qkv, qkv_bias, num_head)
    batch, length, width = query.shape
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        if mask_type == 1:
            mask = mask.view(batch, 1, 1, length)
        hidden = mask if mask.dtype == torch.bool else mask != 0
        scores = scores.masked_fill(hidden, -float("inf"))
    attention = torch.softmax(scores, -1)
    merged = (attention @ v).transpose(1, 2).reshape(batch, length, width)
    output = torch.nn.functional.linear(merged, proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, attention.mean(1) if average_attn_weights else attention


# ---- batches of sequences of different lengths, one after another ("jagged") or padded


def _places(offsets: Sequence[Tensor], length: int) -> tuple[Tensor, Tensor]:
    """Of padded elements [batch, length]: row among the values, and whether there is one."""
    if len(offsets) != 1:
        raise NotImplementedError("jagged tensors with more than one jagged dim are not supported on the tpu device")
    (starts,) = offsets
    place = starts[:-1, None] + torch.arange(length, device=starts.device, dtype=starts.dtype)
    return place, place < starts[1:, None]


def _jagged_to_padded(
    values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[int], padding_value: float = 0.0
) -> Tensor:
    """[total, ...] -> [batch, length, ...]; sequences longer than that are cut."""
    (length,) = max_lengths if len(offsets) == 1 else (0,)
    place, there = _places(offsets, length)
    rest = values.shape[1:]
    if values.size(0) == 0:
        return values.new_full((*place.shape, *rest), padding_value)
    picked = values.index_select(0, place.clamp(0, values.size(0) - 1).reshape(-1)).reshape(*place.shape, *rest)
    return torch.where(there.reshape(*place.shape, *[1] * len(rest)), picked, padding_value).to(values.dtype)


def _padded_to_jagged(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:
    """[batch, length, ...] -> [total, ...]; zeros where a sequence is longer than the padded ones. Without `total_L`
    the last offset is read."""
    if len(offsets) != 1:
        raise NotImplementedError("jagged tensors with more than one jagged dim are not supported on the tpu device")
    (starts,) = offsets
    total = int(starts[-1].item()) if total_L is None else total_L
    rows = torch.arange(total, device=starts.device, dtype=starts.dtype)
    batch = torch.searchsorted(starts, rows, right=True) - 1
    place = rows - starts.index_select(0, batch)
    length = dense.size(1)
    flat = dense.reshape(dense.size(0) * length, *dense.shape[2:])
    picked = flat.index_select(0, batch * length + place.clamp(max=length - 1))
    there = (place < length).reshape(-1, *[1] * (picked.dim() - 1))
    return torch.where(there, picked, 0).to(dense.dtype)


# ---- products of narrow types


def _scaled_mm(
    self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """(self scale_a) (mat2 scale_b) + bias of float8 matrices [m, k] and [k, n], computed in float32. A scale is one
    number, or [m, 1] and [1, n]."""
    if self.dim() != 2 or mat2.dim() != 2 or self.size(1) != mat2.size(0):
        raise RuntimeError(f"_scaled_mm: shapes {tuple(self.shape)} and {tuple(mat2.shape)} cannot be multiplied")
    for scale, sizes in ((scale_a, (self.size(0), 1)), (scale_b, (1, mat2.size(1)))):
        if scale.dtype != torch.float32 or (scale.numel() != 1 and tuple(scale.shape) != sizes):
            raise NotImplementedError(
                f"_scaled_mm: a scale is one float32 number or float32 {list(sizes)} on the tpu device, "
                f"not {scale.dtype} {list(scale.shape)}"
            )
    one = [s.reshape(()) if s.numel() == 1 else s for s in (scale_a, scale_b)]
    result = (self.to(torch.float32) @ mat2.to(torch.float32)) * one[0] * one[1]
    if bias is not None:
        result = result + bias
    if scale_result is not None and (out_dtype or self.dtype).itemsize == 1:
        result = result * scale_result
    return result.to(out_dtype or self.dtype)


def _weight_int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """self [m, k] times int8 rows mat2 [n, k], each row with a scale [n]."""
    product = self.to(torch.float32) @ mat2.to(torch.float32).t()
    return (product * scales.to(torch.float32)).to(self.dtype)


# ---- others


def _batch_norm_update_stats(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel; the running ones take up `momentum` of the mean and of the unbiased
    variance."""
    axes = [d for d in range(input.dim()) if d != 1]
    variance, mean = torch.var_mean(input.float() if input.dtype.itemsize < 4 else input, axes, correction=0)
    count = input.numel() // max(input.size(1), 1)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean * momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(variance * (momentum * count / max(count - 1, 1)))
    return mean, variance


def _cholesky_solve_helper(self: Tensor, A: Tensor, upper: bool) -> Tensor:
    return torch.cholesky_solve(self, A, upper)


def _cumulative_helper(function: Callable[..., Any]) -> Callable[..., None]:
    def helper(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
        result = function(self, dim)
        values.copy_(result[0])
        indices.copy_(result[1])

    return helper


def _linear_combination(input: Tensor, coefficients: Tensor) -> Tensor:
    """sum_i coefficients[j, i] input[i]."""
    result: Tensor = torch.tensordot(coefficients, input, dims=([1], [0]))
    return result


def _add_relu(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    return torch.relu(torch.add(self, other, alpha=alpha))


def _unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.unique_consecutive(self, return_inverse, return_counts, dim)
    return result


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lengths on the device are read: they decide how the targets are laid out."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    result: tuple[Tensor, Tensor] = torch.ops.aten._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    return result


def _ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    lengths = input_lengths.tolist(), target_lengths.tolist()
    result: Tensor = torch.ops.aten._ctc_loss_backward(
        grad, log_probs, targets, *lengths, neg_log_likelihood, log_alpha, blank, zero_infinity
    )
    return result


def _adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor, *, grad_input: Tensor) -> Tensor:
    return grad_input.resize_(self.shape).copy_(torch.ops.aten._adaptive_avg_pool3d_backward(grad_output, self))


def _assert_async(self: Tensor, assert_msg: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    """The device is asked at once: an error some time later would have no line."""
    if self.numel() != 1:
        raise RuntimeError("Boolean value of Tensor with " + ("no values" if self.numel() == 0 else "more than one"))
    if not self.item():
        raise RuntimeError(assert_msg)


def _functional_assert_async(self: Tensor, assert_msg: str, dep_token: Tensor) -> Tensor:
    _assert_async(self, assert_msg)
    return dep_token.clone()


COMPOSITES: dict[str, Callable[..., Any]] = {
    "aten::_native_multi_head_attention": _native_multi_head_attention,
    "aten::_transform_bias_rescale_qkv": _split_heads,
    "aten::_jagged_to_padded_dense_forward": _jagged_to_padded,
    "aten::_padded_dense_to_jagged_forward": _padded_to_jagged,
    "aten::_scaled_mm": _scaled_mm,
    "aten::_weight_int8pack_mm": _weight_int8pack_mm,
    "aten::batch_norm_update_stats": _batch_norm_update_stats,
    "aten::_cholesky_solve_helper": _cholesky_solve_helper,
    "aten::_cummax_helper": _cumulative_helper(torch.cummax),
    "aten::_cummin_helper": _cumulative_helper(torch.cummin),
    "aten::_compute_linear_combination": _linear_combination,
    "aten::_add_relu.Tensor": _add_relu,
    "aten::_add_relu.Scalar": _add_relu,
    "aten::unique_dim_consecutive": _unique_dim_consecutive,
    "aten::_ctc_loss.Tensor": _ctc_loss,
    "aten::_ctc_loss_backward.Tensor": _ctc_loss_backward,
    "aten::adaptive_avg_pool3d_backward.grad_input": _adaptive_avg_pool3d_backward,
    "aten::_assert_async": _assert_async,
    "aten::_assert_async.msg": _assert_async,
    "aten::_functional_assert_async.msg": _functional_assert_async,
}
