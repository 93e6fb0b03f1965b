// Eigenvalues and eigenvectors of Hermitian matrices by Jacobi's two-sided method (Golub and Van Loan, Matrix
// Computations, 8.5). It converges quadratically, for every matrix, and its eigenvectors are orthogonal to rounding.

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_jacobi.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// The matrix in quarters [b, h, h], its diagonal kept apart (zeros stand in its place), and the eigenvectors so far as
/// rows [b, h, n], if wanted. Row i of the top and row i of the bottom meet.
struct State {
  Halves left, right;
  Halves diagonal;  // real [b, h]
  Halves vectors;

  static State from(std::span<const Value> v) {
    State state{{v[0], v[1]}, {v[2], v[3]}, {v[4], v[5]}, {}};
    if (v.size() > 6) state.vectors = {v[6], v[7]};
    return state;
  }
  std::vector<Value> list() const {
    std::vector<Value> v{left.top, left.bottom, right.top, right.bottom, diagonal.top, diagonal.bottom};
    if (vectors.top.defined()) v.insert(v.end(), {vectors.top, vectors.bottom});
    return v;
  }
};

/// `x` [b, h, h] with zeros on the diagonal.
Value without_diagonal(Value x) {
  const Value same = compare(entry_index(x, 0), entry_index(x, 1), Compare::kEq);
  return select(same, full_like(x, 0), x);
}

/// Every pair that meets is rotated, J^H A J; then all move to their next seats.
State round_of(const State& state) {
  const Value w = diagonal_of(state.right.top);
  const Value all = w.builder().constant(int64_t{1}, {DType::kBool, w.dims()});
  const Rotations r = rotations_of(state.diagonal.top, state.diagonal.bottom, w, all);
  // Rows are rotated by the conjugates of what rotates columns.
  const Rotations rows{conjugate(r.sine), conjugate(r.ratio), r.shift};
  const Halves left = rotate(rows, state.left), right = rotate(rows, state.right);
  const Halves top = rotate(r, {left.top, right.top}, 2), bottom = rotate(r, {left.bottom, right.bottom}, 2);
  // What met has become diagonal: exact zeros, and the diagonal is known.
  const Halves upper = next_round({without_diagonal(top.top), without_diagonal(top.bottom)}, 2);
  const Halves lower = next_round({without_diagonal(bottom.top), without_diagonal(bottom.bottom)}, 2);
  State next{next_round({upper.top, lower.top}), next_round({upper.bottom, lower.bottom}), {}, {}};
  next.diagonal = next_round({subtract(state.diagonal.top, r.shift), add(state.diagonal.bottom, r.shift)});
  if (state.vectors.top.defined()) next.vectors = next_round(rotate(r, state.vectors));
  return next;
}

/// Sum of squares of all entries of each quarter: [b].
Value off_diagonal(const State& state) {
  Value sum;
  for (const Value part : {state.left.top, state.left.bottom, state.right.top, state.right.bottom}) {
    const Value squares = reduce(squared_size(part), Reducer::kAdd, {1, 2});
    sum = sum.defined() ? add(sum, squares) : squares;
  }
  return sum;
}

struct Eigen {
  Value values;   // real [b, n], ascending
  Value vectors;  // [b, n, n], one in each column; undefined if not wanted
  Value failed;   // i1[b]
};

State initial_state(Value x, bool vectors) {
  const int64_t b = x.dim(0), n = x.dim(1), even = n + n % 2;
  const Value whole = grown(x, even, even);
  const Halves rows = split_rows(without_diagonal(whole));
  const int64_t h = even / 2;
  State state{{part_of(rows.top, 1, 0, h), part_of(rows.bottom, 1, 0, h)},
              {part_of(rows.top, 1, h, even), part_of(rows.bottom, 1, h, even)},
              split_rows(real_part(diagonal_of(whole))),
              {}};
  if (vectors) state.vectors = split_rows(identity_matrix(x.builder(), x.dtype(), b, n, n));
  return state;
}

/// Sweeps until what is off the diagonals has vanished beside the whole. Returns the last state and, for each matrix,
/// whether it has not.
std::pair<State, Value> diagonalise(const State& start, int64_t rounds) {
  Builder& builder = start.left.top.builder();
  const Value diagonal = add(reduce(squared_size(start.diagonal.top), Reducer::kAdd, {1}),
                             reduce(squared_size(start.diagonal.bottom), Reducer::kAdd, {1}));
  const Value off = off_diagonal(start);
  const double tolerance = epsilon_of(off.dtype());
  const Value limit = multiply(add(off, diagonal), full_like(off, tolerance * tolerance));
  const auto unfinished = [](Value off, Value limit) { return compare(off, limit, Compare::kGt); };
  std::vector<Value> carried{scalar(builder, int64_t{0}, DType::kS32), limit, off};
  for (const Value value : start.list()) carried.push_back(value);
  const auto last = while_loop(
      carried,
      [&](std::span<const Value> v) {
        const Value going = reduce(unfinished(v[2], v[1]), Reducer::kOr, {0});
        const Value most = scalar(v[0].builder(), kMostSweeps, DType::kS32);
        return std::vector<Value>{bit_and(going, compare(v[0], most, Compare::kLt))};
      },
      [&](std::span<const Value> v) {
        const Value count = scalar(v[0].builder(), rounds, DType::kS32);
        const auto swept = counted_loop(count, v.subspan(3), {},
                                        [](Value, auto state, auto) { return round_of(State::from(state)).list(); });
        const Value one = scalar(v[0].builder(), int64_t{1}, DType::kS32);
        std::vector<Value> next{add(v[0], one), v[1], off_diagonal(State::from(swept))};
        next.insert(next.end(), swept.begin(), swept.end());
        return next;
      });
  return {State::from(std::span<const Value>(last).subspan(3)), unfinished(last[2], last[1])};
}

/// `x` [b, n, n], n > 0, Hermitian.
Eigen decompose(Value x, bool vectors) {
  const int64_t n = x.dim(1);
  const Value scale = safe_scale(x);
  const State start = initial_state(multiply(x, broadcast_in_dim(as_type(scale, x.dtype()), x.dims(), {0})), vectors);
  const auto [state, failed] = diagonalise(start, n + n % 2 - 1);
  // All are back where they were, a row that was added for the sake of evenness included: it is the last.
  Value values = slice(join_rows(state.diagonal), {0, 0}, {x.dim(0), n}, {1, 1});
  values = stablehlo::divide(values, broadcast_in_dim(scale, values.dims(), {0}));
  if (!vectors) return {sort_keys(values), Value(), failed};
  const Sorted sorted = sort_rows(values, orthonormal_rows(part_of(join_rows(state.vectors), 0, 0, n)));
  return {sorted.keys, transposed(sorted.rows), failed};
}

/// The Hermitian matrix of which one triangle is given.
Value hermitian(Value x, bool lower) {
  const Value half = triangle(x, lower, 1);
  const Value diagonal = as_type(real_part(x), x.dtype());
  const Value same = compare(entry_index(x, 0), entry_index(x, 1), Compare::kEq);
  return select(same, diagonal, add(half, adjoint(half)));
}

std::vector<Value> linalg_eigh(const OpCall& call) {
  const std::string uplo = call.string(1);
  const bool vectors = call.boolean(2);
  const Value x = flatten_batch(call.tensor(0));
  if (x.type().numel() == 0) return {zero_result(call, 0), zero_result(call, 1)};
  const Value whole = hermitian(x, uplo == "L" || uplo == "l");
  const Eigen eigen = decompose(whole, vectors);
  check_none(call, bit_or(eigen.failed, not_finite(x)),
             "linalg.eigh: The algorithm failed to converge because the input matrix is "
             "ill-conditioned or has too many repeated eigenvalues");
  return {to_result(call, 0, eigen.values), vectors ? to_result(call, 1, eigen.vectors) : zero_result(call, 1)};
}

const Row kRows[] = {
    {.name = "_linalg_eigh", .lower = linalg_eigh, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_eigh_rows() { return kRows; }

}  // namespace tpu::lowering
