#include "lowering/linear_algebra_matrix.h"

#include <limits>

#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

Value conjugate(Value x) { return is_complex(x.dtype()) ? complex(real(x), negate(imag(x))) : x; }

Value transposed(Value x) {
  Dims axes = iota(x.rank());
  std::swap(axes[x.rank() - 1], axes[x.rank() - 2]);
  return transpose(x, axes);
}

Value adjoint(Value x) { return transposed(conjugate(x)); }

Dims matrix_dims(std::span<const int64_t> batch, int64_t rows, int64_t columns) {
  Dims dims(batch);
  dims.push_back(rows);
  dims.push_back(columns);
  return dims;
}

Dims batch_of(const Dims& dims) { return Dims(dims.begin(), dims.end() - 2); }
int64_t rows_of(Value x) { return x.dim(x.rank() - 2); }
int64_t columns_of(Value x) { return x.dim(x.rank() - 1); }

Value flatten_batch(Value x) { return reshape(x, {product(batch_of(x.dims())), rows_of(x), columns_of(x)}); }

Value entry_index(Value x, int64_t axis) {
  return index_along(x.builder(), x.dims(), static_cast<int64_t>(x.rank()) - 2 + axis);
}

Value triangle(Value x, bool lower, int64_t shift) {
  const Value row = entry_index(x, 0), column = entry_index(x, 1);
  const Value distance = lower ? subtract(row, column) : subtract(column, row);
  const Value inside = compare(distance, full_like(distance, static_cast<double>(shift)), Compare::kGe);
  return select(inside, x, full_like(x, 0));
}

Value identity_like(Value x) {
  const Value same = compare(entry_index(x, 0), entry_index(x, 1), Compare::kEq);
  return select(same, full_like(x, 1), full_like(x, 0));
}

Value identity_matrix(Builder& builder, DType dtype, int64_t batch, int64_t rows, int64_t columns) {
  return identity_like(builder.constant(0.0, {dtype, {batch, rows, columns}}));
}

Value part_of(Value x, int64_t axis, int64_t first, int64_t limit) {
  const size_t at = x.rank() - 2 + axis;
  Dims start(x.rank(), 0), end = x.dims();
  start[at] = first;
  end[at] = limit;
  return slice(x, start, end, Dims(x.rank(), 1));
}

Value grown(Value x, int64_t rows, int64_t columns) {
  if (rows == x.dim(1) && columns == x.dim(2)) return x;
  return pad(x, scalar(x.builder(), 0.0, x.dtype()), {0, 0, 0}, {0, rows - x.dim(1), columns - x.dim(2)}, {0, 0, 0});
}

Value diagonal_of(Value x) {
  const Value same = compare(entry_index(x, 0), entry_index(x, 1), Compare::kEq);
  return reduce(select(same, x, full_like(x, 0)), Reducer::kAdd, {2});
}

Value take_rows(Value x, Value rows) {
  const int64_t b = x.dim(0), k = rows.dim(1), m = x.dim(2);
  if (b * k * m == 0) return broadcast_to(scalar(x.builder(), 0.0, x.dtype()), {b, k, m});
  const Value parts[] = {index_along(x.builder(), {b, k, 1}, 0), reshape(rows, {b, k, 1})};
  GatherDims dims;
  dims.offset_dims = {2};
  dims.collapsed_slice_dims = {0, 1};
  dims.start_index_map = {0, 1};
  dims.index_vector_dim = 2;
  return gather(x, concatenate(parts, 2), dims, {1, 1, m});
}

Value inverse_permutation(Value permutation) {
  const int64_t b = permutation.dim(0), n = permutation.dim(1);
  const Value numbers = index_along(permutation.builder(), {b, n, n}, 1);
  const Value match = compare(numbers, broadcast_in_dim(permutation, {b, n, n}, {0, 2}), Compare::kEq);
  const Value place = index_along(permutation.builder(), {b, n, n}, 2);
  return reduce(select(match, place, full_like(place, 0)), Reducer::kAdd, {2});
}

Value solve_triangle(Value a, Value b, bool left, bool lower, bool unit, Transpose op) {
  if (b.type().numel() == 0) return b;
  return triangular_solve(a, b, left, lower, unit, op);
}

namespace {

constexpr int kHighest = 2;

Value precise_dot(Value a, Value b, const DotDims& dims) {
  Builder& builder = a.builder();
  const int before = builder.dot_precision();
  builder.set_dot_precision(kHighest);
  const Value result = dot_general(a, b, dims, a.dtype());
  builder.set_dot_precision(before);
  return result;
}

}  // namespace

Value matrix_product(Value a, Value b) { return precise_dot(a, b, {{0}, {0}, {2}, {1}}); }

Value vector_product(Value row, Value matrix) { return precise_dot(row, matrix, {{0}, {0}, {1}, {1}}); }

Value to_result(const OpCall& call, size_t k, Value x) {
  return reshape(convert_like_torch(x, call.result_type(k).dtype), call.result_type(k).dims);
}

Value zero_result(const OpCall& call, size_t k) { return call.builder().constant(0.0, call.result_type(k)); }

double epsilon_of(DType dtype) {
  return real_type(dtype) == DType::kF32 ? std::numeric_limits<float>::epsilon()
                                         : std::numeric_limits<double>::epsilon();
}

double smallest_normal(DType dtype) {
  return real_type(dtype) == DType::kF32 ? std::numeric_limits<float>::min() : std::numeric_limits<double>::min();
}

Value as_type(Value x, DType dtype) { return is_complex(dtype) ? complex(x, full_like(x, 0)) : x; }

Value real_part(Value x) { return is_complex(x.dtype()) ? real(x) : x; }

Value cheap_size(Value x) { return is_complex(x.dtype()) ? add(abs(real(x)), abs(imag(x))) : abs(x); }

Value squared_size(Value x) {
  if (!is_complex(x.dtype())) return multiply(x, x);
  return add(multiply(real(x), real(x)), multiply(imag(x), imag(x)));
}

Value select_matrix(Value flag, Value x, Value other) {
  return select(broadcast_in_dim(flag, x.dims(), {0}), x, other);
}

Value safe_scale(Value x) {
  const Value largest = reduce(cheap_size(x), Reducer::kMaximum, {1, 2});
  const bool single = largest.dtype() == DType::kF32;
  const Value low = full_like(largest, single ? 1e-10 : 1e-100), high = full_like(largest, single ? 1e10 : 1e100);
  const Value one = full_like(largest, 1);
  const Value usable = bit_and(compare(largest, low, Compare::kGe), compare(largest, high, Compare::kLe));
  const Value ready = bit_or(usable, compare(largest, full_like(largest, 0), Compare::kEq));
  return select(ready, one, stablehlo::divide(one, largest));
}

Value not_finite(Value x) {
  const Value finite = is_complex(x.dtype()) ? bit_and(is_finite(real(x)), is_finite(imag(x))) : is_finite(x);
  return reduce(logical_not(finite), Reducer::kOr, {1, 2});
}

void check_none(const OpCall& call, Value bad, const std::string& message, Code code) {
  call.check(reduce(bad, Reducer::kOr, iota(bad.rank())), code, message);
}

Reflection reflection_of(Value x, Value first) {
  const Dims& dims = x.dims();
  const Dims batch{dims[0]};
  const auto along = [&](Value v) { return broadcast_in_dim(v, dims, {0}); };
  const Value number = index_along(x.builder(), dims, 1);
  const Value at = compare(number, broadcast_to(first, dims), Compare::kEq);
  const Value below = compare(number, broadcast_to(first, dims), Compare::kGt);
  const Value nothing = full_like(x, 0);
  const Value tail = select(below, x, nothing);
  const Value alpha = reduce(select(at, x, nothing), Reducer::kAdd, {1});
  const Value alpha_re = real_part(alpha);
  // Norms are of numbers divided by the largest, lest their squares overflow or vanish.
  const Value largest = maximum(reduce(cheap_size(tail), Reducer::kMaximum, {1}), cheap_size(alpha));
  const Value zero = full_like(largest, 0), one = full_like(largest, 1);
  const Value safe = select(compare(largest, zero, Compare::kEq), one, largest);
  const auto shrink = [&](Value v, Value by) { return stablehlo::divide(v, as_type(by, v.dtype())); };
  const Value rest = reduce(squared_size(shrink(tail, along(safe))), Reducer::kAdd, {1});
  const Value norm = multiply(sqrt(add(rest, squared_size(shrink(alpha, safe)))), safe);
  Value trivial = compare(reduce(cheap_size(tail), Reducer::kMaximum, {1}), zero, Compare::kEq);
  if (is_complex(x.dtype())) trivial = bit_and(trivial, compare(imag(alpha), zero, Compare::kEq));

  const Value opposite = select(compare(alpha_re, zero, Compare::kLt), norm, negate(norm));
  const Value divisor = select(trivial, one, opposite);  // beta, or 1 where nothing is to be done
  const Value tau_re = stablehlo::divide(subtract(opposite, alpha_re), divisor);
  const Value tau = is_complex(x.dtype()) ? complex(tau_re, negate(stablehlo::divide(imag(alpha), divisor))) : tau_re;
  const Value no_tau = full_like(tau, 0), unit = full_like(alpha, 1);
  const Value head = select(trivial, unit, subtract(alpha, as_type(opposite, x.dtype())));
  const Value vector = select(at, full_like(x, 1), stablehlo::divide(tail, along(head)));
  return {vector, select(trivial, no_tau, tau), select(trivial, alpha, as_type(opposite, x.dtype()))};
}

}  // namespace tpu::lowering
