// Triangular solves, Cholesky and LU factorisations, and what follows from them. Linear systems and
// determinants are composed of these in aten/linear_algebra.cpp. Batches broadcast as in torch.linalg.
// StableHLO has triangular_solve and cholesky; LU with partial pivoting is a loop over columns.

#include <algorithm>

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_loop.h"
#include "lowering/linear_algebra_matrix.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

// ---- triangular systems

std::vector<Value> linalg_solve_triangular(const OpCall& call) {
  const Dims batch = batch_of(call.result_type().dims);
  Value a = call.tensor(0), b = call.tensor(1);
  a = broadcast_to(a, matrix_dims(batch, rows_of(a), columns_of(a)));
  b = broadcast_to(b, call.result_type().dims);
  return {solve_triangle(a, b, call.boolean(3), !call.boolean(2), call.boolean(4))};
}

/// self (right-hand sides), A, upper, transpose, unitriangular -> solution, copy of A.
std::vector<Value> triangular_solve_rows(const OpCall& call) {
  const Value b = broadcast_to(call.tensor(0), call.result_type(0).dims);
  const Value a = broadcast_to(call.tensor(1), call.result_type(1).dims);
  const Transpose op = call.boolean(3) ? Transpose::kTranspose : Transpose::kNo;
  return {solve_triangle(a, b, true, !call.boolean(2), call.boolean(4), op), a};
}

// ---- Cholesky

/// Lower factor of `x`, of which only the lower triangle is read.
Value lower_factor(Value x) {
  if (x.type().numel() == 0) return x;
  return triangle(stablehlo::cholesky(x, true), true);
}

/// 1-based order of the first leading minor that is not positive, 0 where there is none: i32[batch].
/// Runs the factorisation column by column, without square roots of what failed.
Value first_bad_minor(Value x) {
  const Dims& dims = x.dims();
  const int64_t n = rows_of(x);
  Builder& builder = x.builder();
  const Dims batch = batch_of(dims);
  const Value none = builder.constant(int64_t{0}, {DType::kS32, batch});
  const Value count = scalar(builder, n, DType::kS32);
  const Value state[] = {x, none};
  const Dims over_batch = iota(batch.size());
  return counted_loop(count, state, {}, [&](Value k, auto carried, auto) {
    const Value work = carried[0];
    const Value row = entry_index(work, 0), column = entry_index(work, 1);
    const Value at = broadcast_to(k, dims);
    const auto last = static_cast<int64_t>(dims.size()) - 1;
    const Value in_column = select(compare(column, at, Compare::kEq), work, full_like(work, 0));
    const Value l = reduce(in_column, Reducer::kAdd, {last});
    Dims vector = batch;
    vector.push_back(n);
    const Value on_row = compare(index_along(work.builder(), vector, last - 1), broadcast_to(k, vector), Compare::kEq);
    const Value pivot = reduce(select(on_row, l, full_like(l, 0)), Reducer::kAdd, {last - 1});
    const Value size = is_complex(pivot.dtype()) ? real(pivot) : pivot;
    const Value good = compare(size, full_like(size, 0), Compare::kGt);
    const Value order = broadcast_to(add(k, scalar(k.builder(), int64_t{1}, DType::kS32)), batch);
    const Value first = bit_and(logical_not(good), compare(carried[1], full_like(carried[1], 0), Compare::kEq));
    const Value info = select(first, order, carried[1]);
    const Value safe = convert(select(good, size, full_like(size, 1)), work.dtype());
    const Value below = select(compare(row, at, Compare::kGt), full_like(work, 1), full_like(work, 0));
    Dims row_axes = over_batch, column_axes = over_batch;
    row_axes.push_back(last - 1);
    column_axes.push_back(last);
    const Value left = multiply(broadcast_in_dim(l, dims, row_axes), below);
    const Value right = broadcast_in_dim(conjugate(l), dims, column_axes);
    const Value update = stablehlo::divide(multiply(left, right), broadcast_in_dim(safe, dims, over_batch));
    return std::vector<Value>{subtract(work, update), info};
  })[1];
}

/// Factor and status of a Hermitian positive-definite matrix.
struct Cholesky {
  Value factor;
  Value info;  // i32[batch]
};

Cholesky factor_positive(Value x, bool upper) {
  if (upper) x = adjoint(x);
  const Value l = lower_factor(x);
  const Dims batch = batch_of(x.dims());
  const TensorType info_type{DType::kS32, batch};
  Builder& builder = x.builder();
  Value info = builder.constant(int64_t{0}, info_type);
  if (x.type().numel() > 0) {
    // Where a minor is not positive the compiler's factor holds NaN but no order; only then look for it.
    const Value parts = is_complex(l.dtype()) ? add(real(l), imag(l)) : l;
    const Value failed = reduce(compare(parts, parts, Compare::kNe), Reducer::kOr, iota(l.rank()));
    const TensorType types[] = {info_type};
    info = if_else(
        failed, [&](auto) { return std::vector<Value>{first_bad_minor(x)}; },
        [&](auto) { return std::vector<Value>{builder.constant(int64_t{0}, info_type)}; }, types)[0];
  }
  return {upper ? adjoint(l) : l, info};
}

void check_info(const OpCall& call, Value info, const std::string& message) {
  check_none(call, compare(info, full_like(info, 0), Compare::kNe), message);
}

constexpr char kNotPositive[] = "The factorization could not be completed because the input is not positive-definite";
constexpr char kSingular[] =
    "The diagonal element is zero, the solve could not be completed because the input is singular";

std::vector<Value> linalg_cholesky_ex(const OpCall& call) {
  const Cholesky result = factor_positive(call.tensor(0), call.boolean(1));
  if (call.boolean(2)) check_info(call, result.info, std::string("linalg.cholesky_ex: ") + kNotPositive);
  return {result.factor, result.info};
}

std::vector<Value> cholesky(const OpCall& call) {
  const Cholesky result = factor_positive(call.tensor(0), call.boolean(1));
  check_info(call, result.info, std::string("cholesky: ") + kNotPositive);
  return {result.factor};
}

/// X of A X = B for A = L L^H.
Value solve_with_factor(Value l, Value b) {
  const Value y = solve_triangle(l, b, true, true, false);
  return solve_triangle(l, y, true, true, false, is_complex(l.dtype()) ? Transpose::kAdjoint : Transpose::kTranspose);
}

/// B, factor, upper.
std::vector<Value> cholesky_solve(const OpCall& call) {
  const Dims& sizes = call.result_type().dims;
  Value l = call.tensor(1);
  l = broadcast_to(l, matrix_dims(batch_of(sizes), rows_of(l), columns_of(l)));
  if (call.boolean(2)) l = adjoint(l);
  return {solve_with_factor(l, broadcast_to(call.tensor(0), sizes))};
}

std::vector<Value> cholesky_inverse(const OpCall& call) {
  Value l = call.tensor(0);
  if (call.boolean(1)) l = adjoint(l);
  return {solve_with_factor(l, identity_like(l))};
}

// ---- LU with partial pivoting

/// Packed factors, pivots (0-based, i32[b, min(n, m)]), row permutation (row of A in each place, i32[b, n])
/// and status (i32[b]) of a [b, n, m] value.
struct Lu {
  Value packed;
  Value pivots;
  Value permutation;
  Value info;
};

/// Number of the largest entry of each row of a [b, n] value; the first of equals.
Value first_largest(Value x) {
  Builder& builder = x.builder();
  const Value numbers = index_along(builder, x.dims(), 1);
  const Value inputs[] = {x, numbers};
  const Value init[] = {scalar(builder, -1.0, x.dtype()), scalar(builder, int64_t{0}, DType::kS32)};
  return reduce(inputs, init, {1}, [](std::span<const Value> v) {
    const Value larger = compare(v[2], v[0], Compare::kGt);
    const Value equal = compare(v[2], v[0], Compare::kEq);
    const Value take = bit_or(larger, bit_and(equal, compare(v[3], v[1], Compare::kLt)));
    return std::vector<Value>{select(take, v[2], v[0]), select(take, v[3], v[1])};
  })[1];
}

/// Row `row[i]` of matrix i of a [b, n, m] value, as [b, m]; `row` is i32[b].
Value row_of(Value x, Value row) { return reshape(take_rows(x, reshape(row, {x.dim(0), 1})), {x.dim(0), x.dim(2)}); }

/// Rows `k` (0-d) and `p` (i32[b]) of `x` exchanged.
Value exchange_rows(Value x, Value k, Value p) {
  const Dims& dims = x.dims();
  const Value row = index_along(x.builder(), dims, 1);
  const Value row_k = row_of(x, broadcast_to(k, {dims[0]})), row_p = row_of(x, p);
  const Value at_k = compare(row, broadcast_to(k, dims), Compare::kEq);
  const Value at_p = compare(row, broadcast_in_dim(p, dims, {0}), Compare::kEq);
  const Value other = select(at_p, broadcast_in_dim(row_k, dims, {0, 2}), x);
  return select(at_k, broadcast_in_dim(row_p, dims, {0, 2}), other);
}

/// One column of the factorisation. State: packed [b, n, m], pivots, permutation [b, n, 1], info.
std::vector<Value> eliminate_column(Value k, std::span<const Value> state, bool pivot) {
  Builder& builder = k.builder();
  const Dims dims = state[0].dims();
  const int64_t b = dims[0], n = dims[1];
  const Value zero = scalar(builder, int64_t{0}, DType::kS32);
  const auto column_of = [&](Value x) {
    const Value start[] = {zero, zero, k};
    return reshape(dynamic_slice(x, start, {b, n, 1}), {b, n});
  };
  const Value number = index_along(builder, {b, n}, 1);
  const Value here = broadcast_to(k, {b, n});
  const Value size = cheap_size(column_of(state[0]));
  const Value candidates = select(compare(number, here, Compare::kGe), size, full_like(size, -1));
  const Value p = pivot ? maximum(first_largest(candidates), broadcast_to(k, {b})) : broadcast_to(k, {b});
  const Value packed = pivot ? exchange_rows(state[0], k, p) : state[0];
  const Value permutation = pivot ? exchange_rows(state[2], k, p) : state[2];

  const Value column = column_of(packed);
  const Value is_pivot = compare(number, here, Compare::kEq);
  const Value diagonal = reduce(select(is_pivot, column, full_like(column, 0)), Reducer::kAdd, {1});
  const Value is_zero = compare(diagonal, full_like(diagonal, 0), Compare::kEq);
  const Value first = bit_and(is_zero, compare(state[3], full_like(state[3], 0), Compare::kEq));
  const Value order = broadcast_to(add(k, scalar(builder, int64_t{1}, DType::kS32)), {b});
  const Value info = select(first, order, state[3]);

  const Value divisor = select(is_zero, full_like(diagonal, 1), diagonal);
  const Value below = compare(number, here, Compare::kGt);
  const Value l = stablehlo::divide(column, broadcast_in_dim(divisor, {b, n}, {0}));
  const Value multipliers = select(below, l, full_like(l, 0));
  const Value u = row_of(packed, broadcast_to(k, {b}));
  const Value column_number = index_along(builder, dims, 2);
  const Value right = compare(column_number, broadcast_to(k, dims), Compare::kGt);
  const Value update = multiply(broadcast_in_dim(multipliers, dims, {0, 1}), broadcast_in_dim(u, dims, {0, 2}));
  const Value reduced = select(right, subtract(packed, update), packed);
  const Value stored = select(below, l, column);
  const Value in_column = compare(column_number, broadcast_to(k, dims), Compare::kEq);
  const Value next = select(in_column, broadcast_in_dim(stored, dims, {0, 1}), reduced);

  const Value pivot_start[] = {zero, k};
  const Value pivots = dynamic_update_slice(state[1], reshape(p, {b, 1}), pivot_start);
  return {next, pivots, permutation, info};
}

Lu factor_lu(Value x, bool pivot) {
  const Value flat = flatten_batch(x);
  const int64_t b = flat.dim(0), n = flat.dim(1), steps = std::min(n, flat.dim(2));
  Builder& builder = x.builder();
  const Value pivots = builder.constant(int64_t{0}, {DType::kS32, {b, steps}});
  const Value order = index_along(builder, {b, n, 1}, 1);
  const Value info = builder.constant(int64_t{0}, {DType::kS32, {b}});
  if (flat.type().numel() == 0) return {flat, pivots, reshape(order, {b, n}), info};
  const Value state[] = {flat, pivots, order, info};
  const auto last = counted_loop(scalar(builder, steps, DType::kS32), state, {},
                                 [&](Value k, auto carried, auto) { return eliminate_column(k, carried, pivot); });
  return {last[0], last[1], reshape(last[2], {b, n}), last[3]};
}

Value one_based(Value pivots) { return add(pivots, full_like(pivots, 1)); }

/// Row permutation i32[b, n] that 1-based pivots i32[b, k] describe.
Value permutation_of(Value pivots, int64_t n) {
  Builder& builder = pivots.builder();
  const int64_t b = pivots.dim(0), count = pivots.dim(1);
  const Value order = index_along(builder, {b, n, 1}, 1);
  if (b == 0 || n == 0) return reshape(order, {b, n});
  const Value state[] = {order};
  const Value fixed[] = {subtract(pivots, full_like(pivots, 1))};
  const auto last =
      counted_loop(scalar(builder, count, DType::kS32), state, fixed, [&](Value k, auto carried, auto rest) {
        const Value start[] = {scalar(k.builder(), int64_t{0}, DType::kS32), k};
        const Value p = reshape(dynamic_slice(rest[0], start, {b, 1}), {b});
        return std::vector<Value>{exchange_rows(carried[0], k, p)};
      });
  return reshape(last[0], {b, n});
}

/// P of A = P L U as `dtype`[b, n, n]: entry (i, j) is 1 where row i of A went to place j.
Value permutation_matrix(Value permutation, DType dtype) {
  const int64_t b = permutation.dim(0), n = permutation.dim(1);
  const Value row = index_along(permutation.builder(), {b, n, n}, 1);
  return convert(compare(row, broadcast_in_dim(permutation, {b, n, n}, {0, 2}), Compare::kEq), dtype);
}

/// X of A X = B for A = P L U; all [b, ., .].
Value solve_with_lu(Value packed, Value permutation, Value b) {
  const Value y = solve_triangle(packed, take_rows(b, permutation), true, true, true);
  return solve_triangle(packed, y, true, false, false);
}

/// X of A^H X = B for A = P L U.
Value solve_adjoint_with_lu(Value packed, Value permutation, Value b) {
  const Value y = solve_triangle(packed, b, true, false, false, Transpose::kAdjoint);
  const Value z = solve_triangle(packed, y, true, true, true, Transpose::kAdjoint);
  return take_rows(z, inverse_permutation(permutation));
}

std::vector<Value> linalg_lu_factor_ex(const OpCall& call) {
  const Lu lu = factor_lu(call.tensor(0), call.boolean(1));
  if (call.boolean(2)) check_info(call, lu.info, std::string("linalg.lu_factor_ex: ") + kSingular);
  return {to_result(call, 0, lu.packed), to_result(call, 1, one_based(lu.pivots)), to_result(call, 2, lu.info)};
}

/// First min(n, m) columns of the unit lower part and rows of the upper part of packed factors [b, n, m].
std::pair<Value, Value> unpack_triangles(Value packed) {
  const int64_t b = packed.dim(0), n = packed.dim(1), m = packed.dim(2), k = std::min(n, m);
  const Value tall = slice(packed, {0, 0, 0}, {b, n, k}, {1, 1, 1});
  const Value lower = add(triangle(tall, true, 1), identity_like(tall));
  const Value wide = slice(packed, {0, 0, 0}, {b, k, m}, {1, 1, 1});
  return {lower, triangle(wide, false)};
}

std::vector<Value> linalg_lu(const OpCall& call) {
  const bool pivot = call.boolean(1);
  const Lu lu = factor_lu(call.tensor(0), pivot);
  const auto [lower, upper] = unpack_triangles(lu.packed);
  const Value p = pivot ? to_result(call, 0, permutation_matrix(lu.permutation, lu.packed.dtype()))
                        : call.builder().constant(0.0, call.result_type(0));
  return {p, to_result(call, 1, lower), to_result(call, 2, upper)};
}

/// LU_data, LU_pivots, unpack_data, unpack_pivots -> P, L, U; what is not wanted is empty.
std::vector<Value> lu_unpack(const OpCall& call) {
  const Value packed = flatten_batch(call.tensor(0));
  const Value given = call.tensor(1);
  const Value empty = call.builder().constant(0.0, TensorType{packed.dtype(), {0}});
  std::vector<Value> results(3, empty);
  if (call.boolean(3)) {
    const Value pivots = reshape(given, {packed.dim(0), given.dim(given.rank() - 1)});
    const Value p = permutation_matrix(permutation_of(pivots, packed.dim(1)), packed.dtype());
    results[0] = to_result(call, 0, p);
  }
  if (call.boolean(2)) {
    const auto [lower, upper] = unpack_triangles(packed);
    results[1] = to_result(call, 1, lower);
    results[2] = to_result(call, 2, upper);
  }
  return results;
}

/// LU, pivots, B, left, adjoint.
std::vector<Value> linalg_lu_solve(const OpCall& call) {
  const Dims& sizes = call.result_type().dims;
  const Dims batch = batch_of(sizes);
  Value packed = call.tensor(0), pivots = call.tensor(1);
  const int64_t n = rows_of(packed);
  packed = flatten_batch(broadcast_to(packed, matrix_dims(batch, n, n)));
  Dims pivot_dims = batch;
  pivot_dims.push_back(n);
  pivots = reshape(broadcast_to(pivots, pivot_dims), {product(batch), n});
  const Value outside = bit_or(compare(pivots, full_like(pivots, 1), Compare::kLt),
                               compare(pivots, full_like(pivots, static_cast<double>(n)), Compare::kGt));
  check_none(call, outside, "linalg.lu_solve: pivots must lie between 1 and LU.size(-2). Are they those of lu_factor?",
             Code::kInvalidArgument);
  const Value permutation = permutation_of(pivots, n);
  Value b = flatten_batch(broadcast_to(call.tensor(2), sizes));
  const bool left = call.boolean(3), adjoint_system = call.boolean(4);
  // X A = B is A^H X^H = B^H.
  if (!left) b = adjoint(b);
  Value x =
      adjoint_system == left ? solve_adjoint_with_lu(packed, permutation, b) : solve_with_lu(packed, permutation, b);
  if (!left) x = adjoint(x);
  return {to_result(call, 0, x)};
}

std::vector<Value> linalg_inv_ex(const OpCall& call) {
  const Lu lu = factor_lu(call.tensor(0), true);
  if (call.boolean(1)) check_info(call, lu.info, std::string("linalg.inv_ex: ") + kSingular);
  const Value inverse = solve_with_lu(lu.packed, lu.permutation, identity_like(lu.packed));
  return {to_result(call, 0, inverse), to_result(call, 1, lu.info)};
}

const Row kRows[] = {
    {.name = "linalg_solve_triangular", .lower = linalg_solve_triangular, .heavy = true},
    {.name = "triangular_solve", .lower = triangular_solve_rows, .heavy = true},
    {.name = "linalg_cholesky_ex", .lower = linalg_cholesky_ex, .heavy = true},
    {.name = "cholesky", .lower = cholesky, .heavy = true},
    {.name = "cholesky_solve", .lower = cholesky_solve, .heavy = true},
    {.name = "cholesky_inverse", .lower = cholesky_inverse, .heavy = true},
    {.name = "linalg_lu_factor_ex", .lower = linalg_lu_factor_ex, .heavy = true},
    {.name = "linalg_lu", .lower = linalg_lu, .heavy = true},
    {.name = "lu_unpack", .lower = lu_unpack, .heavy = true},
    {.name = "linalg_lu_solve", .lower = linalg_lu_solve, .heavy = true},
    {.name = "linalg_inv_ex", .lower = linalg_inv_ex, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_solve_rows() { return kRows; }

}  // namespace tpu::lowering
