// QR factorisation by Householder reflections (Golub and Van Loan, Matrix Computations, 5.2), column by column, and
// products with its orthogonal factor. Signs are LAPACK's, so Q and R equal those of the CPU.

#include "lowering/linear_algebra_qr.h"

#include <algorithm>

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

namespace {

/// Column `k` (0-d) of [b, m, n] as [b, m].
Value column_of(Value x, Value k) {
  const Value zero = scalar(k.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {zero, zero, k};
  return reshape(dynamic_slice(x, start, {x.dim(0), x.dim(1), 1}), {x.dim(0), x.dim(1)});
}

/// `x` with column `k` (0-d) replaced by `column` [b, m].
Value with_column(Value x, Value k, Value column) {
  const Value zero = scalar(k.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {zero, zero, k};
  return dynamic_update_slice(x, reshape(column, {x.dim(0), x.dim(1), 1}), start);
}

/// x - column row^T for [b, m, n], [b, m] and [b, n].
Value minus_outer(Value x, Value column, Value row) {
  return subtract(x, multiply(broadcast_in_dim(column, x.dims(), {0, 1}), broadcast_in_dim(row, x.dims(), {0, 2})));
}

/// One reflection: state is packed [b, m, n] and tau [b, p].
std::vector<Value> reflect_column(Value k, std::span<const Value> state) {
  const Value packed = state[0];
  const int64_t b = packed.dim(0);
  const Value column = column_of(packed, k);
  const Reflection h = reflection_of(column, k);
  // What stands right of the column becomes H^H times it; H^H has the conjugate of tau.
  const Value number = index_along(packed.builder(), {b, packed.dim(2)}, 1);
  const Value right = compare(number, broadcast_to(k, number.dims()), Compare::kGt);
  const Value sums = vector_product(conjugate(h.vector), packed);
  const Value row = select(right, sums, full_like(sums, 0));
  const Value scaled = multiply(h.vector, broadcast_in_dim(conjugate(h.tau), h.vector.dims(), {0}));
  const Value row_number = index_along(packed.builder(), column.dims(), 1);
  const Value at = broadcast_to(k, column.dims());
  const Value below = select(compare(row_number, at, Compare::kGt), h.vector, column);
  const Value beta = broadcast_in_dim(h.beta, column.dims(), {0});
  const Value stored = select(compare(row_number, at, Compare::kEq), beta, below);
  const Value zero = scalar(k.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {zero, k};
  return {with_column(minus_outer(packed, scaled, row), k, stored),
          dynamic_update_slice(state[1], reshape(h.tau, {b, 1}), start)};
}

/// H_k C, or H_k^H C. State: C; fixed: packed, tau.
Value reflect(Value k, Value c, Value packed, Value tau, bool adjoint) {
  const Value column = column_of(packed, k);
  const Dims& dims = column.dims();
  const Value number = index_along(k.builder(), dims, 1);
  const Value at = broadcast_to(k, dims);
  const Value below = select(compare(number, at, Compare::kGt), column, full_like(column, 0));
  const Value vector = select(compare(number, at, Compare::kEq), full_like(column, 1), below);
  const Value start[] = {scalar(k.builder(), int64_t{0}, DType::kS32), k};
  const Value factor = reshape(dynamic_slice(tau, start, {dims[0], 1}), {dims[0]});
  const Value scaled = multiply(vector, broadcast_in_dim(adjoint ? conjugate(factor) : factor, dims, {0}));
  return minus_outer(c, scaled, vector_product(conjugate(vector), c));
}

}  // namespace

PackedQr factor_qr(Value x) {
  const int64_t b = x.dim(0), steps = std::min(x.dim(1), x.dim(2));
  const Value tau = x.builder().constant(0.0, TensorType{x.dtype(), {b, steps}});
  if (x.type().numel() == 0) return {x, tau};
  const Value state[] = {x, tau};
  const auto last = counted_loop(scalar(x.builder(), steps, DType::kS32), state, {},
                                 [](Value k, auto carried, auto) { return reflect_column(k, carried); });
  return {last[0], last[1]};
}

Value apply_reflections(Value packed, Value tau, Value c, bool adjoint) {
  const int64_t count = tau.dim(1);
  if (c.type().numel() == 0 || count == 0) return c;
  const Value state[] = {c};
  const Value fixed[] = {packed, tau};
  return counted_loop(scalar(c.builder(), count, DType::kS32), state, fixed, [&](Value i, auto carried, auto rest) {
    const Value last = scalar(i.builder(), count - 1, DType::kS32);
    return std::vector<Value>{reflect(adjoint ? i : subtract(last, i), carried[0], rest[0], rest[1], adjoint)};
  })[0];
}

namespace {

std::vector<Value> geqrf(const OpCall& call) {
  const PackedQr qr = factor_qr(flatten_batch(call.tensor(0)));
  return {to_result(call, 0, qr.packed), to_result(call, 1, qr.tau)};
}

/// The first `columns` columns of the product of reflections.
Value orthogonal_factor(Value packed, Value tau, int64_t columns) {
  const Value start = identity_matrix(packed.builder(), packed.dtype(), packed.dim(0), packed.dim(1), columns);
  return apply_reflections(packed, tau, start, false);
}

/// Reflections' factors as [batch, k].
Value flat_factors(Value tau) {
  const Dims& dims = tau.dims();
  return reshape(tau, {product(Dims(dims.begin(), dims.end() - 1)), dims.back()});
}

std::vector<Value> linalg_householder_product(const OpCall& call) {
  const Value packed = flatten_batch(call.tensor(0));
  return {to_result(call, 0, orthogonal_factor(packed, flat_factors(call.tensor(1)), packed.dim(2)))};
}

/// packed, tau, C, left, transpose: Q C, Q^H C, C Q or C Q^H.
std::vector<Value> ormqr(const OpCall& call) {
  const Value packed = flatten_batch(call.tensor(0)), tau = flat_factors(call.tensor(1));
  const Value c = flatten_batch(call.tensor(2));
  const bool left = call.boolean(3), transpose = call.boolean(4);
  if (left) return {to_result(call, 0, apply_reflections(packed, tau, c, transpose))};
  // C Q is the adjoint of Q^H C^H.
  return {to_result(call, 0, adjoint(apply_reflections(packed, tau, adjoint(c), !transpose)))};
}

std::vector<Value> linalg_qr(const OpCall& call) {
  const std::string mode = call.string(1);
  const PackedQr qr = factor_qr(flatten_batch(call.tensor(0)));
  const int64_t m = qr.packed.dim(1);
  const int64_t size = mode == "complete" ? m : std::min(m, qr.packed.dim(2));
  const Value r = triangle(part_of(qr.packed, 0, 0, size), false);
  if (mode == "r") return {zero_result(call, 0), to_result(call, 1, r)};
  return {to_result(call, 0, orthogonal_factor(qr.packed, qr.tau, size)), to_result(call, 1, r)};
}

const Row kRows[] = {
    {.name = "geqrf", .lower = geqrf, .heavy = true},
    {.name = "linalg_householder_product", .lower = linalg_householder_product, .heavy = true},
    {.name = "ormqr", .lower = ormqr, .heavy = true},
    {.name = "linalg_qr", .lower = linalg_qr, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_qr_rows() { return kRows; }

}  // namespace tpu::lowering
