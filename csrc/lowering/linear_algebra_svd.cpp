// Singular value decomposition by Jacobi's one-sided method (Hestenes 1958; Demmel and Veselic, Jacobi's method is more
// accurate than QR, 1992), applied to the triangle of a QR factorisation, which makes it small for tall matrices and
// speeds convergence up (Drmac and Veselic, New fast and accurate Jacobi SVD algorithm, 2008).

#include <algorithm>
#include <cmath>

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_jacobi.h"
#include "lowering/linear_algebra_loop.h"
#include "lowering/linear_algebra_qr.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Vectors that become orthogonal, as rows [b, h, n] of two halves, and the product of all rotations, if wanted.
struct State {
  Halves rows;
  Halves product;

  static State from(std::span<const Value> v) {
    State state{{v[0], v[1]}, {}};
    if (v.size() > 2) state.product = {v[2], v[3]};
    return state;
  }
  std::vector<Value> list() const {
    std::vector<Value> v{rows.top, rows.bottom};
    if (product.top.defined()) v.insert(v.end(), {product.top, product.bottom});
    return v;
  }
};

Value squares_of_rows(Value x) { return reduce(squared_size(x), Reducer::kAdd, {2}); }

/// Rotates all pairs that meet and are not orthogonal yet; i1[b] tells where there was one. Vectors shorter than
/// `negligible` (of squares, [b]) are rounding errors, whose angles mean nothing.
std::pair<State, Value> round_of(const State& state, Value negligible) {
  const Halves& x = state.rows;
  const Value top = squares_of_rows(x.top), bottom = squares_of_rows(x.bottom);
  const Value inner = reduce(multiply(conjugate(x.top), x.bottom), Reducer::kAdd, {2});
  const double tolerance = epsilon_of(top.dtype()) * std::sqrt(static_cast<double>(x.top.dim(2)));
  const Value orthogonal = multiply(multiply(sqrt(top), sqrt(bottom)), full_like(top, tolerance));
  const Value counts = compare(minimum(top, bottom), broadcast_in_dim(negligible, top.dims(), {0}), Compare::kGt);
  const Value active = bit_and(counts, compare(abs(inner), orthogonal, Compare::kGt));
  const Rotations r = rotations_of(top, bottom, inner, active);
  State next{next_round(rotate(r, x)), {}};
  if (state.product.top.defined()) next.product = next_round(rotate(r, state.product));
  return {next, reduce(active, Reducer::kOr, {1})};
}

/// Sweeps until one rotates nothing. Returns the last state and where the last sweep still rotated: i1[b].
std::pair<State, Value> orthogonalise(const State& start, Value negligible, int64_t rounds) {
  Builder& builder = negligible.builder();
  const TensorType flags{DType::kBool, negligible.dims()};
  std::vector<Value> carried{scalar(builder, int64_t{0}, DType::kS32), negligible, builder.constant(int64_t{1}, flags)};
  for (const Value value : start.list()) carried.push_back(value);
  const auto last = while_loop(
      carried,
      [&](std::span<const Value> v) {
        const Value most = scalar(v[0].builder(), kMostSweeps, DType::kS32);
        return std::vector<Value>{bit_and(reduce(v[2], Reducer::kOr, {0}), compare(v[0], most, Compare::kLt))};
      },
      [&](std::span<const Value> v) {
        Builder& inside = v[0].builder();
        std::vector<Value> state{inside.constant(int64_t{0}, flags)};
        state.insert(state.end(), v.begin() + 3, v.end());
        const Value fixed[] = {v[1]};
        const auto swept = counted_loop(scalar(inside, rounds, DType::kS32), state, fixed,
                                        [](Value, std::span<const Value> state, std::span<const Value> rest) {
                                          const auto [next, rotated] = round_of(State::from(state.subspan(1)), rest[0]);
                                          std::vector<Value> list = next.list();
                                          list.insert(list.begin(), bit_or(state[0], rotated));
                                          return list;
                                        });
        std::vector<Value> next{add(v[0], scalar(inside, int64_t{1}, DType::kS32)), v[1]};
        next.insert(next.end(), swept.begin(), swept.end());
        return next;
      });
  return {State::from(std::span<const Value>(last).subspan(3)), last[2]};
}

/// A = U diag(values) V^H of a square A; U and V [b, n, n] with vectors as columns, undefined if not wanted.
struct Svd {
  Value u, values, v;
  Value failed;  // i1[b]
};

/// Orthonormal columns from rows [b, n, n] that are orthogonal or zero, those that are zero coming last: QR leaves the
/// orthonormal ones as they are up to a factor, which the diagonal of R undoes, and completes the basis.
Value completed_basis(Value rows) {
  const PackedQr qr = factor_qr(transposed(rows));
  const int64_t b = rows.dim(0), n = rows.dim(1);
  const Value q = apply_reflections(qr.packed, qr.tau, identity_matrix(rows.builder(), rows.dtype(), b, n, n), false);
  const Value diagonal = real_part(diagonal_of(qr.packed));  // real: beta
  const Value negative = compare(diagonal, full_like(diagonal, 0), Compare::kLt);
  const Value sign = select(negative, full_like(diagonal, -1), full_like(diagonal, 1));
  return multiply(q, broadcast_in_dim(as_type(sign, q.dtype()), q.dims(), {0, 2}));
}

/// SVD of the upper triangle `r` [b, n, n], n > 0. With L = R^H and L V = U S, R = V S U^H: what the rotations make of
/// L's columns are the right vectors, and their product the left ones.
Svd decompose_triangle(Value r, bool vectors) {
  const int64_t b = r.dim(0), n = r.dim(1);
  const Value scale = safe_scale(r);
  const Value x = multiply(r, broadcast_in_dim(as_type(scale, r.dtype()), r.dims(), {0}));
  State start{split_rows(conjugate(x)), {}};  // columns of R^H, as rows
  if (vectors) start.product = split_rows(identity_matrix(r.builder(), r.dtype(), b, n, n));
  const Value whole = reduce(squared_size(x), Reducer::kAdd, {1, 2});
  // (eps^2 |A|)^2: far below what rounding leaves of a column that depends on others.
  const double eps = epsilon_of(whole.dtype());
  const Value negligible = multiply(whole, full_like(whole, eps * eps * eps * eps));
  const auto [state, failed] = orthogonalise(start, negligible, n + n % 2 - 1);

  const Value rows = part_of(join_rows(state.rows), 0, 0, n);
  const Value lengths = sqrt(squares_of_rows(rows));
  const auto unscaled = [&](Value v) { return stablehlo::divide(v, broadcast_in_dim(scale, v.dims(), {0})); };
  if (!vectors) return {Value(), unscaled(negate(sort_keys(negate(lengths)))), Value(), failed};
  const Sorted right = sort_rows(negate(lengths), rows);
  const Sorted left = sort_rows(negate(lengths), orthonormal_rows(part_of(join_rows(state.product), 0, 0, n)));
  const Value sorted = negate(right.keys);
  const Value none = compare(multiply(sorted, sorted), broadcast_in_dim(negligible, sorted.dims(), {0}), Compare::kLe);
  const Value length = as_type(select(none, full_like(sorted, 1), sorted), r.dtype());
  const Value normal = stablehlo::divide(right.rows, broadcast_in_dim(length, rows.dims(), {0, 1}));
  const Value unit = select(broadcast_in_dim(none, rows.dims(), {0, 1}), full_like(normal, 0), normal);
  return {transposed(left.rows), unscaled(sorted), completed_basis(unit), failed};
}

/// SVD of `a` [b, m, n] with m >= n > 0; U has m columns when `full`, n otherwise.
Svd decompose_tall(Value a, bool full, bool vectors) {
  const int64_t m = a.dim(1), n = a.dim(2);
  const PackedQr qr = factor_qr(a);
  Svd svd = decompose_triangle(triangle(part_of(qr.packed, 0, 0, n), false), vectors);
  if (!vectors) return svd;
  Value u = grown(svd.u, m, full ? m : n);
  if (full && m > n) {
    const Value row = entry_index(u, 0), column = entry_index(u, 1);
    const Value beyond = bit_and(compare(row, column, Compare::kEq), compare(row, full_like(row, n), Compare::kGe));
    u = select(beyond, full_like(u, 1), u);
  }
  svd.u = apply_reflections(qr.packed, qr.tau, u, false);
  return svd;
}

/// A, full_matrices, compute_uv, driver.
std::vector<Value> linalg_svd(const OpCall& call) {
  if (call.has(3)) {
    throw Error(Code::kInvalidArgument,
                "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend.");
  }
  const Value a = flatten_batch(call.tensor(0));
  const bool full = call.boolean(1), vectors = call.boolean(2);
  const int64_t b = a.dim(0), m = a.dim(1), n = a.dim(2);
  if (a.type().numel() == 0) {
    if (!vectors || !full) return {zero_result(call, 0), zero_result(call, 1), zero_result(call, 2)};
    const Value u = identity_matrix(a.builder(), a.dtype(), b, m, m);
    const Value vh = identity_matrix(a.builder(), a.dtype(), b, n, n);
    return {to_result(call, 0, u), zero_result(call, 1), to_result(call, 2, vh)};
  }
  const bool wide = m < n;
  Svd svd = decompose_tall(wide ? adjoint(a) : a, full, vectors);
  check_none(call, not_finite(a),
             "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.");
  check_none(call, svd.failed,
             "linalg.svd: The algorithm failed to converge because the input matrix is ill-conditioned or has too many "
             "repeated singular values");
  if (!vectors) return {zero_result(call, 0), to_result(call, 1, svd.values), zero_result(call, 2)};
  // The adjoint of U S V^H is V S U^H.
  if (wide) std::swap(svd.u, svd.v);
  return {to_result(call, 0, svd.u), to_result(call, 1, svd.values), to_result(call, 2, adjoint(svd.v))};
}

const Row kRows[] = {
    {.name = "_linalg_svd", .lower = linalg_svd, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_svd_rows() { return kRows; }

}  // namespace tpu::lowering
