#include "lowering/linear_algebra_jacobi.h"

#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

namespace {

/// Entries `first` .. `limit` - 1 of an axis.
Value between(Value x, int64_t axis, int64_t first, int64_t limit) {
  Dims start(x.rank(), 0), end = x.dims();
  start[axis] = first;
  end[axis] = limit;
  return slice(x, start, end, Dims(x.rank(), 1));
}

}  // namespace

Halves split_rows(Value x) {
  const int64_t n = x.dim(1), half = (n + 1) / 2;
  if (n % 2 == 1) {
    Dims high(x.rank(), 0);
    high[1] = 1;
    x = pad(x, scalar(x.builder(), 0.0, x.dtype()), Dims(x.rank(), 0), high, Dims(x.rank(), 0));
  }
  return {between(x, 1, 0, half), between(x, 1, half, 2 * half)};
}

Value join_rows(const Halves& halves) {
  const Value parts[] = {halves.top, halves.bottom};
  return concatenate(parts, 1);
}

Halves next_round(const Halves& halves, int64_t axis) {
  const int64_t h = halves.top.dim(axis);
  if (h == 1) return halves;
  const Value up[] = {between(halves.top, axis, 0, 1), between(halves.bottom, axis, 0, 1),
                      between(halves.top, axis, 1, h - 1)};
  const Value down[] = {between(halves.bottom, axis, 1, h), between(halves.top, axis, h - 1, h)};
  return {concatenate(up, axis), concatenate(down, axis)};
}

Rotations rotations_of(Value a, Value d, Value w, Value active) {
  const Value size = abs(w);
  const Value one = full_like(size, 1), zero = full_like(size, 0);
  active = bit_and(active, compare(size, zero, Compare::kGt));
  const Value safe = select(active, size, one);
  // The smaller root of t^2 + 2 zeta t - 1.
  const Value zeta = stablehlo::divide(subtract(d, a), add(safe, safe));
  const Value root = stablehlo::divide(one, add(abs(zeta), sqrt(add(one, multiply(zeta, zeta)))));
  const Value tangent = select(active, select(compare(zeta, zero, Compare::kLt), negate(root), root), zero);
  const Value cosine = stablehlo::divide(one, sqrt(add(one, multiply(tangent, tangent))));
  const Value phase = stablehlo::divide(w, as_type(safe, w.dtype()));
  const Value sine = multiply(as_type(multiply(tangent, cosine), w.dtype()), phase);
  return {sine, stablehlo::divide(sine, as_type(add(one, cosine), w.dtype())), multiply(tangent, size)};
}

Halves rotate(const Rotations& rotations, const Halves& halves, int64_t axis) {
  const Value x = halves.top, y = halves.bottom;
  const auto along = [&](Value v) { return broadcast_in_dim(v, x.dims(), {0, axis}); };
  const Value s = along(rotations.sine), r = along(rotations.ratio);
  return {subtract(x, multiply(conjugate(s), add(y, multiply(r, x)))),
          add(y, multiply(s, subtract(x, multiply(conjugate(r), y))))};
}

Value orthonormal_rows(Value x) {
  const Value excess = subtract(matrix_product(x, adjoint(x)), identity_like(x));
  return subtract(x, multiply(matrix_product(excess, x), full_like(x, 0.5)));
}

namespace {

std::vector<Value> sort_with(std::span<const Value> inputs) {
  return sort(inputs, 1, true, [](std::span<const Value> pair) {
    return std::vector<Value>{compare(pair[0], pair[1], Compare::kLt, true)};
  });
}

}  // namespace

Value sort_keys(Value keys) {
  const Value inputs[] = {keys};
  return sort_with(inputs)[0];
}

Sorted sort_rows(Value keys, Value rows) {
  const Value inputs[] = {keys, index_along(keys.builder(), keys.dims(), 1)};
  const auto sorted = sort_with(inputs);
  return {sorted[0], take_rows(rows, sorted[1])};
}

}  // namespace tpu::lowering
