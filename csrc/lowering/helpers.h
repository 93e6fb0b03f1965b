#pragma once
// What most lowerings share: broadcasting to a result's sizes, promotion, axes, scalars as values.

#include "lowering/op_call.h"
#include "stablehlo/ops.h"

namespace tpu::lowering {

/// Numpy-style broadcast of `x` to `sizes` (trailing dims aligned, 1 expands). No-op when equal.
Value broadcast_to(Value x, const Dims& sizes);

/// Arguments `i` of the call converted to `dtype` and broadcast to the result's sizes.
Value elementwise_operand(const OpCall& call, size_t i, DType dtype);

/// Constant with the dims and dtype of `like`.
Value full_like(Value like, double value);
/// Same, 0-d.
Value scalar(Builder& builder, double value, DType dtype);
Value scalar(Builder& builder, int64_t value, DType dtype);

/// `axis` wrapped into [0, rank); a rank of 0 counts as 1.
int64_t wrap_axis(int64_t axis, size_t rank);
/// All axes when `axes` is empty, otherwise each wrapped, ascending.
Dims wrap_axes(const Dims& axes, size_t rank);
/// `x` reduced over `axes`, with size-1 dims left in place when `keep`.
Value reduce_axes(Value x, stablehlo::Reducer reducer, const Dims& axes, bool keep);
/// Value of reduced dims broadcast back over `axes` of `sizes` (inverse of a reduction without keepdim).
Value broadcast_over(Value reduced, const Dims& sizes, const Dims& axes);

/// Elementwise sum of `x` over the dims that broadcasting added, to `sizes`.
Value sum_to(Value x, const Dims& sizes);

/// Size-1 dim added at / removed from `axis`.
Value unsqueeze(Value x, int64_t axis);
Value squeeze(Value x, int64_t axis);

/// x[i, index[i, k]], for `x` of sizes [n, m] and an integer `index` [n, k] of positions below m.
Value take_along(Value x, Value index);

/// `x` of rank 1 or more: a 0-d value gets one dim of size 1, so that axis code needs no special case.
Value at_least_1d(Value x);

/// i1, true where `x` is NaN (either part of a complex number); false everywhere for integers.
Value is_nan(Value x);
/// a / b, correctly rounded. XLA replaces a division by a broadcast divisor (every number, every row of statistics) by
/// a product with its reciprocal: 82 / 41 becomes 1.9999999, and everything divided by 1e38 becomes 0, for the
/// reciprocal is denormal.
Value divide_exactly(Value a, Value b);

/// PyTorch's conversion rules: float -> bool is `!= 0`, complex -> real takes the real part, float ->
/// integer truncates. All dtype changes in lowerings go through here.
Value convert_like_torch(Value x, DType dtype);

}  // namespace tpu::lowering
