// Eigenvalues and eigenvectors of general matrices, from the Schur form: back substitution, as in LAPACK's ?TREVC. The
// results of a real matrix are those of real arithmetic: real eigenvalues are exactly real, others exactly conjugate.

#include "lowering/linear_algebra_eig.h"

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Entry i + 1 of each row of [b, n] in place i; zero in the last.
Value shifted_up(Value x) {
  const int64_t b = x.dim(0), n = x.dim(1);
  const Value padded = pad(x, scalar(x.builder(), 0.0, x.dtype()), {0, 0}, {0, 1}, {0, 0});
  return slice(padded, {0, 1}, {b, n + 1}, {1, 1});
}

/// Eigenvalues, complex [b, n], of a quasi-triangular real T: those of the blocks, each by the formula that does not
/// cancel. Of a conjugate pair the one above the real axis comes first.
Value eigenvalues_of_blocks(const Schur& schur) {
  const Value diagonal = diagonal_below(schur.t, 0), sub = diagonal_below(schur.t, 1);
  const Value a = diagonal, d = shifted_up(diagonal), c = sub, b = shifted_up(diagonal_below(schur.t, -1));
  const Value half = full_like(a, 0.5), zero = full_like(a, 0);
  const Value spread = multiply(subtract(a, d), half);
  const Value product = multiply(b, c);
  const Value square = add(multiply(spread, spread), product);
  const Value are_real = compare(square, zero, Compare::kGe);
  const Value root = sqrt(abs(square));
  const Value larger = add(spread, select(compare(spread, zero, Compare::kLt), negate(root), root));
  const Value safe = select(compare(larger, zero, Compare::kEq), full_like(a, 1), larger);
  const Value first = complex(add(d, select(are_real, larger, spread)), select(are_real, zero, root));
  const Value second = complex(select(are_real, subtract(d, stablehlo::divide(product, safe)), add(d, spread)),
                               select(are_real, zero, negate(root)));
  const Value alone = complex(diagonal, zero);
  return select(schur.linked, first, select(shifted_down(schur.linked), shifted_down(second), alone));
}

Value eigenvalues_of(const Schur& schur) {
  return is_complex(schur.t.dtype()) ? diagonal_below(schur.t, 0) : eigenvalues_of_blocks(schur);
}

/// Column `k` (0-d) of [b, n] as [b].
Value entry(Value list, Value k) {
  const Value start[] = {scalar(k.builder(), int64_t{0}, DType::kS32), k};
  return reshape(dynamic_slice(list, start, {list.dim(0), 1}), {list.dim(0)});
}

/// The block of rows k and k + 1, where there is one, made triangular by a unitary rotation. State: T, Z^T; fixed:
/// eigenvalues, links.
std::vector<Value> split_block(Value k, std::span<const Value> state, Value eigenvalues, Value linked) {
  const int64_t b = eigenvalues.dim(0);
  const Value next = add(k, scalar(k.builder(), int64_t{1}, DType::kS32));
  const Value rows = lines_at(state[0], k, 2, 1);
  const Value block = lines_at(rows, k, 2, 2);
  const auto of_block = [&](int64_t row, int64_t column) {
    return reshape(slice(block, {0, row, column}, {b, row + 1, column + 1}, {1, 1, 1}), {b});
  };
  const Value here = entry(linked, k);
  // (lambda - d, c) is the first eigenvector; the reflection takes e_1 to it.
  const Value first = entry(eigenvalues, k), second = entry(eigenvalues, next);
  const Value vector[] = {reshape(subtract(first, of_block(1, 1)), {b, 1}), reshape(of_block(1, 0), {b, 1})};
  Reflection h = reflection_of(concatenate(vector, 1), scalar(k.builder(), int64_t{0}, DType::kS32));
  h.tau = select(here, h.tau, full_like(h.tau, 0));
  std::vector<Value> turned = similar(h, k, reflect_rows(h, rows), state);
  // What is known exactly: a zero below the diagonal, the eigenvalues on it.
  const Value made = lines_at(lines_at(turned[0], k, 2, 1), k, 2, 2);
  const Value row = entry_index(made, 0), column = entry_index(made, 1);
  const auto at = [&](Value place, int64_t index) { return compare(place, full_like(place, index), Compare::kEq); };
  const auto spread = [&](Value v) { return broadcast_in_dim(v, made.dims(), {0}); };
  const Value diagonal = select(at(row, 0), spread(first), spread(second));
  const Value below = select(bit_and(at(row, 1), at(column, 0)), full_like(made, 0), made);
  const Value exact = select(compare(row, column, Compare::kEq), diagonal, below);
  const Value zero = scalar(k.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {zero, k, k};
  turned[0] = dynamic_update_slice(turned[0], select_matrix(here, exact, made), start);
  return turned;
}

/// Complex triangular form of a real quasi-triangular one.
Schur triangular_form(const Schur& schur, Value eigenvalues) {
  const DType dtype = eigenvalues.dtype();
  const int64_t n = schur.t.dim(1);
  const Value state[] = {as_type(schur.t, dtype), as_type(schur.z_transposed, dtype)};
  if (n == 1) return {state[0], state[1], schur.linked, schur.failed};
  const Value fixed[] = {eigenvalues, schur.linked};
  const auto last =
      counted_loop(scalar(eigenvalues.builder(), n - 1, DType::kS32), state, fixed,
                   [](Value k, auto state, auto rest) { return split_block(k, state, rest[0], rest[1]); });
  return {last[0], last[1], schur.linked, schur.failed};
}

/// Row `n - 1 - step` of the eigenvectors X of a triangular T, T X = X diag(eigenvalues), where X has a unit diagonal
/// up to the factors that keep its columns from overflowing. State: X; fixed: T, eigenvalues, least denominators
/// (real).
Value substitute_row(Value step, Value x, Value t, Value eigenvalues, Value least) {
  const int64_t b = t.dim(0), n = t.dim(1);
  const Value j = subtract(scalar(step.builder(), n - 1, DType::kS32), step);
  const Value place = index_along(step.builder(), {b, n}, 1);
  const Value at = broadcast_to(j, {b, n});
  const Value beyond = compare(place, at, Compare::kGt);
  const Value row = reshape(lines_at(t, j, 1, 1), {b, n});
  const Value sums = vector_product(select(beyond, row, full_like(row, 0)), x);
  const Value diagonal = reduce(select(compare(place, at, Compare::kEq), row, full_like(row, 0)), Reducer::kAdd, {1});
  const Value distance = subtract(broadcast_in_dim(diagonal, {b, n}, {0}), eigenvalues);
  const Value near = compare(cheap_size(distance), least, Compare::kLt);
  const Value divisor = select(near, as_type(least, distance.dtype()), distance);
  const Value solved = negate(stablehlo::divide(sums, divisor));
  const Value size = cheap_size(solved), one = full_like(size, 1);
  const Value shrink = stablehlo::divide(one, maximum(select(beyond, size, one), one));
  const Value factor = as_type(shrink, x.dtype());
  const Value shrunk = multiply(x, broadcast_in_dim(factor, x.dims(), {0, 2}));
  const Value old = reshape(lines_at(shrunk, j, 1, 1), {b, n});
  return with_lines_at(shrunk, j, reshape(select(beyond, multiply(solved, factor), old), {b, 1, n}), 1);
}

Value triangular_eigenvectors(Value t, Value eigenvalues) {
  const Value scale = broadcast_in_dim(reduce(cheap_size(t), Reducer::kMaximum, {1, 2}), eigenvalues.dims(), {0});
  const double eps = epsilon_of(t.dtype());
  // Equal eigenvalues count as this far apart, which perturbs T by less than rounding did.
  const Value apart =
      multiply(maximum(cheap_size(eigenvalues), multiply(scale, full_like(scale, eps))), full_like(scale, eps));
  const Value least = maximum(apart, full_like(apart, smallest_normal(t.dtype())));
  const Value state[] = {identity_like(t)};
  const Value fixed[] = {t, eigenvalues, least};
  return counted_loop(scalar(t.builder(), t.dim(1), DType::kS32), state, fixed, [](Value i, auto x, auto rest) {
    return std::vector<Value>{substitute_row(i, x[0], rest[0], rest[1], rest[2])};
  })[0];
}

/// Columns of length 1 whose largest entry is real and positive.
Value normalised(Value x) {
  const Value largest = reduce(cheap_size(x), Reducer::kMaximum, {1});
  const Value safe = select(compare(largest, full_like(largest, 0), Compare::kEq), full_like(largest, 1), largest);
  const Value scaled = stablehlo::divide(x, broadcast_in_dim(as_type(safe, x.dtype()), x.dims(), {0, 2}));
  const Value squares = squared_size(scaled);
  const Value length = sqrt(reduce(squares, Reducer::kAdd, {1}));
  // The first of the largest entries.
  const Value most = broadcast_in_dim(reduce(squares, Reducer::kMaximum, {1}), x.dims(), {0, 2});
  const Value row = entry_index(x, 0);
  const Value places = select(compare(squares, most, Compare::kEq), row, full_like(row, x.dim(1)));
  const Value place = reduce(places, Reducer::kMinimum, {1});
  const Value is_pivot = compare(row, broadcast_in_dim(place, x.dims(), {0, 2}), Compare::kEq);
  const Value pivot = reduce(select(is_pivot, scaled, full_like(scaled, 0)), Reducer::kAdd, {1});
  const Value turn = stablehlo::divide(conjugate(pivot), as_type(multiply(abs(pivot), length), x.dtype()));
  const Value turned = multiply(scaled, broadcast_in_dim(turn, x.dims(), {0, 2}));
  return select(is_pivot, complex(real(turned), full_like(real(turned), 0)), turned);
}

/// Eigenvectors of a real matrix: real ones of real eigenvalues, conjugate ones of conjugate pairs.
Value like_real_arithmetic(Value vectors, Value eigenvalues) {
  const Dims& dims = vectors.dims();
  const Value im = imag(eigenvalues), zero = full_like(im, 0);
  const Value is_real = broadcast_in_dim(compare(im, zero, Compare::kEq), dims, {0, 2});
  const Value is_second = broadcast_in_dim(compare(im, zero, Compare::kLt), dims, {0, 2});
  const Value moved = slice(pad(vectors, scalar(im.builder(), 0.0, vectors.dtype()), {0, 0, 1}, {0, 0, 0}, {0, 0, 0}),
                            {0, 0, 0}, dims, {1, 1, 1});
  const Value pairs = select(is_second, conjugate(moved), vectors);
  return select(is_real, complex(real(pairs), full_like(real(pairs), 0)), pairs);
}

struct Eigen {
  Value values, vectors;
};

/// `a` [b, n, n], n > 0.
Eigen decompose(const OpCall& call, Value a, bool vectors) {
  call.check(reduce(not_finite(a), Reducer::kOr, {0}), Code::kInvalidArgument,
             "torch.linalg.eig: input tensor should not contain infs or NaNs.");
  const Value scale = safe_scale(a);
  const Schur schur = schur_form(multiply(a, broadcast_in_dim(as_type(scale, a.dtype()), a.dims(), {0})), vectors);
  check_none(call, schur.failed,
             "linalg.eig: The algorithm failed to converge because the QR iteration did not split "
             "the matrix");
  const Value values = eigenvalues_of(schur);
  const Value back = stablehlo::divide(full_like(scale, 1), scale);
  const Value unscaled = multiply(values, broadcast_in_dim(as_type(back, values.dtype()), values.dims(), {0}));
  if (!vectors) return {unscaled, Value()};
  const bool is_real = !is_complex(a.dtype());
  const Schur triangular = is_real ? triangular_form(schur, values) : schur;
  const Value x = triangular_eigenvectors(triangular.t, values);
  const Value found = normalised(matrix_product(transposed(triangular.z_transposed), x));
  return {unscaled, is_real ? like_real_arithmetic(found, values) : found};
}

std::vector<Value> linalg_eig(const OpCall& call) {
  const Value a = flatten_batch(call.tensor(0));
  if (a.type().numel() == 0) return {zero_result(call, 0), zero_result(call, 1)};
  const Eigen eigen = decompose(call, a, true);
  return {to_result(call, 0, eigen.values), to_result(call, 1, eigen.vectors)};
}

std::vector<Value> linalg_eigvals(const OpCall& call) {
  const Value a = flatten_batch(call.tensor(0));
  if (a.type().numel() == 0) return {zero_result(call, 0)};
  return {to_result(call, 0, decompose(call, a, false).values)};
}

const Row kRows[] = {
    {.name = "linalg_eig", .lower = linalg_eig, .heavy = true},
    {.name = "_linalg_eigvals", .lower = linalg_eigvals, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_eig_rows() { return kRows; }

}  // namespace tpu::lowering
