// Embedding tables: lookup, dense gradient, renormalisation, and bags (sums, means and maxima of rows).

#include <cmath>

#include "lowering/indexing.h"
#include "stablehlo/ops.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

constexpr char kOutOfRange[] = "index out of range in self";

Results lower_embedding(const OpCall& call) {
  const Value weight = call.tensor(0);
  const Value index = call.tensor(1);
  if (call.result_type().numel() == 0) return {call.builder().constant(0.0, call.result_type())};
  const Value rows = checked_index(call, index, weight.dim(0), 0, {.message = kOutOfRange});
  return {take_slices(weight, rows, 0)};
}

/// How often each of `size` rows occurs among `rows`; int32.
Value occurrences(Value rows, int64_t size) {
  Builder& builder = rows.builder();
  const Value none = builder.constant(int64_t{0}, {DType::kS32, {size}});
  const Value ones = builder.constant(int64_t{1}, {DType::kS32, rows.dims()});
  return scatter_slices(none, rows, ones, 0, Combine::kAdd);
}

/// `x` [n, d] times `factor` [n] per row.
Value scale_rows(Value x, Value factor) { return multiply(x, broadcast_in_dim(factor, x.dims(), {0})); }

/// Rows whose position is `excluded` are sent out of range, where a scatter drops them.
Value without_row(Value rows, int64_t excluded, int64_t size) {
  if (excluded < 0) return rows;
  const Value hit = compare(rows, full_like(rows, static_cast<double>(excluded)), Compare::kEq);
  return select(hit, full_like(rows, static_cast<double>(size)), rows);
}

/// Gradient of a table [size, d] from gradients [n, d] of the looked-up `rows` [n]; both in the compute type.
Value table_gradient(Value grad, Value rows, int64_t size, int64_t padding_row, bool scale_by_frequency) {
  if (scale_by_frequency && grad.dim(0) > 0) {
    const Value count = take_slices(occurrences(rows, size), rows, 0);
    grad = scale_rows(grad, divide(full_like(convert(count, grad.dtype()), 1), convert(count, grad.dtype())));
  }
  const Value zeros = grad.builder().constant(0.0, {grad.dtype(), {size, grad.dim(1)}});
  return scatter_slices(zeros, without_row(rows, padding_row, size), grad, 0, Combine::kAdd);
}

Results lower_embedding_dense_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  const int64_t size = type.dims[0];
  const int64_t width = type.dims[1];
  const Value index = call.tensor(1);
  const int64_t count = index.type().numel();
  const DType dtype = compute_type(type.dtype);
  const Value grad = reshape(convert_like_torch(call.tensor(0), dtype), {count, width});
  const Value rows = convert(reshape(index, {count}), index_dtype(size + 1));
  const Value total = table_gradient(grad, rows, size, call.integer(3), call.boolean(4));
  return {convert_like_torch(total, type.dtype)};
}

/// Norm of order `p` of each row of `x` [n, d].
Value row_norm(Value x, double p) {
  const Value magnitude = abs(x);
  if (std::isinf(p)) return reduce(magnitude, Reducer::kMaximum, {1});
  if (p == 1) return reduce(magnitude, Reducer::kAdd, {1});
  if (p == 2) return sqrt(reduce(multiply(x, x), Reducer::kAdd, {1}));
  const Value sum = reduce(power(magnitude, full_like(magnitude, p)), Reducer::kAdd, {1});
  return power(sum, full_like(sum, 1 / p));
}

/// Rows that are looked up and longer than max_norm are scaled down to it.
Results lower_embedding_renorm(const OpCall& call) {
  const Value weight = call.tensor(0);
  const Value index = reshape(call.tensor(1), {call.tensor(1).type().numel()});
  const double max_norm = call.real(2);
  if (index.dim(0) == 0) return {weight};
  const Value rows = checked_index(call, index, weight.dim(0), 0, {.message = kOutOfRange});
  const Value looked_up = convert(take_slices(weight, rows, 0), compute_type(weight.dtype()));
  const Value norm = row_norm(looked_up, call.real(3));
  const Value limit = full_like(norm, max_norm);
  const Value scale = divide(limit, add(norm, full_like(norm, 1e-7)));
  const Value factor = select(compare(norm, limit, Compare::kGt), scale, full_like(norm, 1));
  // Equal indices write equal rows, so replacing is exact whatever the order.
  const Value scaled = convert(scale_rows(looked_up, factor), weight.dtype());
  return {scatter_slices(weight, rows, scaled, 0, Combine::kReplace)};
}

const Row kRows[] = {
    {"embedding", lower_embedding},
    {"embedding_dense_backward", lower_embedding_dense_backward},
    {"embedding_renorm_", lower_embedding_renorm},
};

}  // namespace

std::span<const Row> embedding_rows() { return kRows; }

}  // namespace tpu::lowering
