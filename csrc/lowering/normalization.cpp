// Softmax and its relatives. Layer and group norms are in normalization_layer.cpp, batch norm in
// normalization_batch.cpp; this file exports the rows of all three.

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"
#include "lowering/table.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

/// The maximum along `axis`, repeated to the sizes of `x`.
Value row_maximum(Value x, int64_t axis) {
  return expand_kept(reduce_over(x, Reducer::kMaximum, {axis}, true), x.dims());
}

Value softmax_along(Value x, int64_t axis) {
  Value e = exponential(subtract(x, row_maximum(x, axis)));
  return divide(e, expand_kept(sum_over(e, {axis}, true), x.dims()));
}

Value log_softmax_along(Value x, int64_t axis) {
  Value shifted = subtract(x, row_maximum(x, axis));
  return subtract(shifted, expand_kept(log(sum_over(exponential(shifted), {axis}, true)), x.dims()));
}

/// Softmax of argument 0 along argument 1 in the accumulator type, at the result's dtype. Inputs narrower
/// than float32 are widened before, so half_to_float needs no code of its own.
template <Value (*kAlong)(Value, int64_t)>
Results softmax(const OpCall& call) {
  const TensorType& type = call.result_type();
  Value x = at_least_1d(call.tensor(0));
  x = convert_like_torch(x, compute_type(type.dtype));
  Value y = kAlong(x, wrap_axis(call.integer(1), x.rank()));
  return {reshape(convert(y, type.dtype), type.dims)};
}

/// Softmax whose fully masked (-inf) rows are zero instead of NaN.
Results safe_softmax(const OpCall& call) {
  const TensorType& type = call.result_type();
  Value x = at_least_1d(convert_like_torch(call.tensor(0), type.dtype));
  x = convert(x, compute_type(type.dtype));
  int64_t axis = wrap_axis(call.integer(1), x.rank());
  Value masked = compare(row_maximum(x, axis), full_like(x, -INFINITY), Compare::kEq);
  Value y = select(masked, full_like(x, 0.0), softmax_along(x, axis));
  return {reshape(convert(y, type.dtype), type.dims)};
}

/// grad_input from (grad_output, output, dim, input_dtype).
template <bool kLog>
Results softmax_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  Value output = at_least_1d(call.tensor(1));
  DType dtype = compute_type(output.dtype());
  output = convert(output, dtype);
  Value grad = convert(at_least_1d(call.tensor(0)), dtype);
  int64_t axis = wrap_axis(call.integer(2), output.rank());
  Value weighted = kLog ? grad : multiply(grad, output);
  Value sum = expand_kept(sum_over(weighted, {axis}, true), output.dims());
  Value result = kLog ? subtract(grad, multiply(exponential(output), sum)) : subtract(weighted, multiply(output, sum));
  return {reshape(convert(result, type.dtype), type.dims)};
}

/// The mask of _masked_softmax repeated to the input's sizes: type 0 is [L, L] and type 1 is [B, L] for an
/// input [B, H, L, L]; type 2 or none already has the input's sizes.
Value attention_mask(Value mask, const Dims& sizes, int64_t mask_type) {
  mask = convert_like_torch(mask, DType::kBool);
  if (mask.dims() == sizes) return mask;
  if (mask_type == 1 && sizes.size() == 4) return broadcast_in_dim(mask, sizes, {0, 3});
  return broadcast_to(mask, sizes);
}

/// Softmax over the positions where the mask is false. A fully masked row is NaN in PyTorch's CPU kernel
/// too, since it divides by an empty sum.
Results masked_softmax(const OpCall& call) {
  const TensorType& type = call.result_type();
  Value x = convert(at_least_1d(call.tensor(0)), compute_type(type.dtype));
  int64_t axis = wrap_axis(call.integer_or(2, -1), x.rank());
  Value mask = attention_mask(at_least_1d(call.tensor(1)), x.dims(), call.integer_or(3, 2));
  Value y = softmax_along(select(mask, full_like(x, -INFINITY), x), axis);
  return {reshape(convert(y, type.dtype), type.dims)};
}

Results masked_softmax_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  DType dtype = compute_type(type.dtype);
  Value grad = convert(at_least_1d(call.tensor(0)), dtype);
  Value output = convert(at_least_1d(call.tensor(1)), dtype);
  Value mask = attention_mask(at_least_1d(call.tensor(2)), output.dims(), 2);
  int64_t axis = wrap_axis(call.integer_or(3, -1), output.rank());
  Value zero = full_like(grad, 0.0);
  Value weighted = select(mask, zero, multiply(grad, output));
  Value sum = expand_kept(sum_over(weighted, {axis}, true), output.dims());
  Value result = select(mask, zero, subtract(weighted, multiply(output, sum)));
  return {reshape(convert(result, type.dtype), type.dims)};
}

constexpr Row kRows[] = {
    {"_softmax", softmax<softmax_along>, 0, 0, 0, true},
    {"_log_softmax", softmax<log_softmax_along>, 0, 0, 0, true},
    {"_safe_softmax", safe_softmax, 0, 0, 0, true},
    {"_softmax_backward_data", softmax_backward<false>, 0, 0, 0, true},
    {"_log_softmax_backward_data", softmax_backward<true>, 0, 0, 0, true},
    {"_masked_softmax", masked_softmax, 0, 0, 0, true},
    {"_masked_softmax_backward", masked_softmax_backward, 0, 0, 0, true},
};

}  // namespace

std::span<const Row> normalization_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    for (std::span<const Row> part : {normalization_layer_rows(), normalization_batch_rows()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
