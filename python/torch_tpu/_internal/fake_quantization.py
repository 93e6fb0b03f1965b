"""Fake quantization, composed of operators that have rows: numbers are rounded to those that q integers with a scale
and a zero point stand for, x -> (clamp(round(x / scale) + zero_point) - zero_point) * scale. See torch.ao.quantization
for the operators; Jacob et al., "Quantization and Training of Neural Networks", 2018, for the method; Esser et al.,
"Learned Step Size Quantization", 2020, for the gradients of the learnable forms."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _single(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _levels(x: Tensor, scale: Tensor | float, zero_point: Tensor | float) -> Tensor:
    """Whole numbers before they are clamped. An integer zero point is added after rounding, a real one before."""
    inverse = 1.0 / scale if isinstance(scale, Tensor) else _single(1.0 / scale)
    scaled = _wide(x) * inverse
    if isinstance(zero_point, Tensor) and zero_point.is_floating_point():
        return (scaled + zero_point).round()
    return scaled.round() + zero_point


def _rounded(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | float, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Numbers as quantization leaves them, in the dtype of x, and where it did not clamp."""
    if low > high:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")
    levels = _levels(x, scale, zero_point)
    result = (levels.clamp(low, high) - zero_point) * scale
    return result.to(x.dtype), (levels >= low) & (levels <= high)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """[channels] -> broadcastable with x."""
    if not 0 <= axis < x.dim():
        raise RuntimeError("`axis` must be between 0 and number of dimensions of input")
    if values.numel() != x.size(axis):
        raise RuntimeError("dimensions of scale and zero-point are not consistent with input tensor")
    return values.reshape([-1 if d == axis else 1 for d in range(x.dim())])


def _per_tensor(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    if not quant_min <= zero_point <= quant_max:
        raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")
    return _rounded(x, _single(scale), zero_point, quant_min, quant_max)


def _per_tensor_tensor_qparams(
    x: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    result, inside = _rounded(x, scale, zero_point, quant_min, quant_max)
    enabled = fake_quant_enabled.reshape([1] * x.dim()) != 0
    return torch.where(enabled, result, x), torch.where(enabled, inside, torch.ones_like(inside))


def _per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    return _rounded(x, _along(scale, x, axis), _along(zero_point, x, axis), quant_min, quant_max)


def _learnable_per_tensor(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    whole = (zero_point.float() + 0.5).clamp(quant_min, quant_max).trunc().to(torch.int64)
    return _rounded(x, scale.float(), whole, quant_min, quant_max)[0]


def _learnable_per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    whole = zero_point.round().clamp(quant_min, quant_max).to(torch.int32)
    return _per_channel(x, scale, whole, axis, quant_min, quant_max)[0]


def _learnable_gradients(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, grad_factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, and for each element of scale and zero point. Clamping passes no gradient to x; that of the scale is then
    the level's, and elsewhere what rounding moved the number by, in levels."""
    levels = _levels(x, scale, zero_point)
    inside = (levels >= low) & (levels <= high)
    edge = levels.clamp(low, high) - zero_point
    moved = ((levels - zero_point) * scale - x) / scale
    of_scale = grad * torch.where(inside, moved, edge) * grad_factor
    of_zero_point = torch.where(inside, 0.0, -grad * scale) * grad_factor
    return torch.where(inside, grad, 0.0), of_scale, of_zero_point


def _learnable_per_tensor_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    whole = zero_point.round().clamp(quant_min, quant_max).to(torch.int64)
    of_x, of_scale, of_zero_point = _learnable_gradients(grad, x, scale, whole, quant_min, quant_max, grad_factor)
    return of_x, of_scale.sum().reshape(scale.shape), of_zero_point.sum().reshape(zero_point.shape)


def _learnable_per_channel_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    whole = zero_point.round().clamp(quant_min, quant_max).to(torch.int64)
    of_x, of_scale, of_zero_point = _learnable_gradients(
        grad, x, _along(scale, x, axis), _along(whole, x, axis), quant_min, quant_max, grad_factor
    )
    others = [d for d in range(x.dim()) if d != axis]
    if not others:
        return of_x, of_scale, of_zero_point
    return of_x, of_scale.sum(others), of_zero_point.sum(others)


# ---- moving averages of the extremes, and the parameters that they give

# Scales below are raised to it, so that their reciprocals stay finite in half precision.
_SMALLEST_SCALE = 6.1e-5


def _parameters(low: Tensor, high: Tensor, quant_min: int, quant_max: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale (float32) and zero point (int32) that spread quant_min ... quant_max over low ... high and over 0."""
    low, high = low.clamp(max=0.0).double(), high.clamp(min=0.0).double()
    levels = quant_max - quant_min
    both = (low < 0) & (high > 0)
    if symmetric:
        half = levels // 2
        widest = torch.maximum((low / -(half + 1)).abs(), (high / half).abs())
        low, high = torch.where(both, -(half + 1) * widest, low), torch.where(both, half * widest, high)
    scale = ((high - low) / levels).float()
    scale = torch.where((scale == 0) | scale.reciprocal().isinf(), torch.full_like(scale, 0.1), scale)
    small = scale < _SMALLEST_SCALE
    raised = torch.where(small, torch.full_like(scale, _SMALLEST_SCALE), scale)
    stretch = (raised / scale).double()
    spread = _single(_SMALLEST_SCALE) * levels
    new_high = torch.where(low == 0, torch.full_like(high, spread), torch.where(high == 0, high, high * stretch))
    new_low = torch.where(low == 0, low, torch.where(high == 0, torch.full_like(low, -spread), low * stretch))
    low, high, scale = torch.where(small, new_low, low), torch.where(small, new_high, high), raised
    wide = scale.double()
    from_low, from_high = quant_min - low / wide, quant_max - high / wide
    low_is_closer = abs(quant_min) - (low / wide).abs() < abs(quant_max) - (high / wide).abs()
    zero = torch.where(low_is_closer, from_low, from_high)
    if symmetric:
        zero = torch.where(both, torch.full_like(zero, (quant_min + quant_max) / 2), zero)
    return scale, zero.clamp(quant_min, quant_max).round().to(torch.int32)


def _moving_average(running: Tensor, new: Tensor, factor: float, on: Tensor) -> None:
    mean = torch.where(running.isinf(), new, running + factor * (new - running))
    running.copy_(torch.where(on, mean, running))


def _fused_moving_average(
    x: Tensor, observer_on: Tensor, fake_quant_on: Tensor, running_min: Tensor, running_max: Tensor, scale: Tensor,
    zero_point: Tensor, averaging_const: float, quant_min: int, quant_max: int, ch_axis: int,
    per_row_fake_quant: bool = False, symmetric_quant: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Updates the running extremes if the observer is on; if fake quantization is on, the parameters too, and rounds
    with them."""
    if per_row_fake_quant:
        # Only what is observed gets its sizes at first: running_min and its like start out empty.
        for state, start in ((running_min, float("inf")), (running_max, -float("inf")), (scale, 1), (zero_point, 0)):
            if state.numel() == 0:
                state.resize_(x.size(ch_axis)).fill_(start)
        rows = x.movedim(ch_axis, 0).reshape(x.size(ch_axis), -1)
        low, high = rows.amin(1), rows.amax(1)
    else:
        low, high = x.amin().reshape(running_min.shape), x.amax().reshape(running_max.shape)
    observing = (observer_on != 0).reshape(())
    _moving_average(running_min, low.float(), averaging_const, observing)
    _moving_average(running_max, high.float(), averaging_const, observing)
    rounding = (fake_quant_on != 0).reshape(())
    new_scale, new_zero_point = _parameters(running_min, running_max, quant_min, quant_max, symmetric_quant)
    scale.copy_(torch.where(rounding, new_scale, scale))
    zero_point.copy_(torch.where(rounding, new_zero_point, zero_point))
    if per_row_fake_quant:
        result, inside = _per_channel(x, scale, zero_point, ch_axis, quant_min, quant_max)
    else:
        result, inside = _rounded(x, scale, zero_point, quant_min, quant_max)
    return torch.where(rounding, result, x), torch.where(rounding, inside, torch.ones_like(inside))


COMPOSITES: dict[str, Callable[..., Any]] = {
    "aten::fake_quantize_per_tensor_affine_cachemask": _per_tensor,
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _per_tensor_tensor_qparams,
    "aten::fake_quantize_per_channel_affine_cachemask": _per_channel,
    "aten::_fake_quantize_learnable_per_tensor_affine": _learnable_per_tensor,
    "aten::_fake_quantize_learnable_per_channel_affine": _learnable_per_channel,
    "aten::_fake_quantize_learnable_per_tensor_affine_backward": _learnable_per_tensor_backward,
    "aten::_fake_quantize_learnable_per_channel_affine_backward": _learnable_per_channel_backward,
    "aten::_fused_moving_avg_obs_fq_helper": _fused_moving_average,
}
