// LDL factorisations of symmetric and Hermitian matrices with the pivoting of Bunch and Kaufman (Some stable methods
// for calculating inertia and solving symmetric linear systems, 1977), in LAPACK's packed form of a lower triangle
// (?SYTRF, ?HETRF): D's blocks of one or two rows on the diagonal, multipliers below, pivots 1-based and negative for
// blocks of two.

#include <cmath>

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_eig.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

Value number(Builder& builder, int64_t value) { return scalar(builder, value, DType::kS32); }
Value plus(Value x, int64_t amount) { return add(x, full_like(x, static_cast<double>(amount))); }
Value is_equal(Value a, Value b) { return compare(a, b, Compare::kEq); }
Value above_zero(Value x) { return compare(x, full_like(x, 0), Compare::kGt); }

/// `list` of one entry for each matrix, [b], over `dims` [b, ...].
Value spread(Value list, const Dims& dims) { return broadcast_in_dim(list, dims, {0}); }

/// Line `place` (i32[b]) of each matrix as [b, n]: a row (axis 1) or column (axis 2).
Value line(Value x, Value place, int64_t axis) {
  return reshape(lines_at(x, place, 1, axis), {x.dim(0), x.dim(3 - axis)});
}

/// Entry `place` (i32[b]) of each row of [b, n].
Value pick(Value list, Value place) {
  const Value here = is_equal(index_along(list.builder(), list.dims(), 1), spread(place, list.dims()));
  return reduce(select(here, list, full_like(list, 0)), Reducer::kAdd, {1});
}

/// Lines `p` and `q` (i32[b]; rows for axis 1, columns for 2) exchanged where the other index is in `where` (i1).
Value exchange(Value x, Value p, Value q, int64_t axis, Value where) {
  const Dims& dims = x.dims();
  const Value place = index_along(x.builder(), dims, axis);
  const Value line_p = broadcast_in_dim(line(x, p, axis), dims, {0, 3 - axis});
  const Value line_q = broadcast_in_dim(line(x, q, axis), dims, {0, 3 - axis});
  const Value at_p = bit_and(where, is_equal(place, spread(p, dims)));
  const Value at_q = bit_and(where, is_equal(place, spread(q, dims)));
  return select(at_p, line_q, select(at_q, line_p, x));
}

/// `x` as the product's second factor: conjugate when the matrix is Hermitian.
Value partner(Value x, bool hermitian) { return hermitian ? conjugate(x) : x; }

// ---- choice of the pivot

struct Largest {
  Value size, place;  // [b]
};

/// The largest of the entries that `among` (i1[b, n]) allows, the first of equals; -1 where there is none.
Largest largest_of(Value list, Value among) {
  const Value size = cheap_size(list);
  const Value candidates = select(among, size, full_like(size, -1));
  const Value most = reduce(candidates, Reducer::kMaximum, {1});
  const Value place = index_along(list.builder(), list.dims(), 1);
  const Value last = full_like(place, static_cast<double>(list.dim(1) - 1));
  return {most, reduce(select(is_equal(candidates, spread(most, list.dims())), place, last), Reducer::kMinimum, {1})};
}

/// The row that moves to the pivot's place, whether the pivot is a block of two, and whether the column is zero: [b].
struct Pivot {
  Value row, two, none;
};

/// For the trailing matrix from row `k` (i32[b]) on, given in full (both triangles).
Pivot choose_pivot(Value a, Value k) {
  const double alpha = (1 + std::sqrt(17.0)) / 8;  // bounds the growth of both kinds of step alike
  const Value column = line(a, k, 2);
  const Value place = index_along(a.builder(), column.dims(), 1), from = spread(k, column.dims());
  const Value diagonal = cheap_size(pick(column, k));
  const Largest below = largest_of(column, compare(place, from, Compare::kGt));
  const Value zero = full_like(diagonal, 0);
  const Value column_most = maximum(below.size, zero);
  const Value row = line(a, below.place, 1);
  const Value others =
      bit_and(compare(place, from, Compare::kGe), logical_not(is_equal(place, spread(below.place, place.dims()))));
  const Value row_most = maximum(largest_of(row, others).size, zero);
  const Value factor = full_like(diagonal, alpha);
  const Value safe = select(above_zero(row_most), row_most, full_like(row_most, 1));
  const Value scaled = multiply(factor, column_most);
  const Value large = compare(diagonal, scaled, Compare::kGe);
  const Value larger = compare(diagonal, multiply(scaled, stablehlo::divide(column_most, safe)), Compare::kGe);
  const Value other = compare(cheap_size(pick(row, below.place)), multiply(factor, row_most), Compare::kGe);
  const Value none = is_equal(maximum(diagonal, column_most), zero);
  const Value stay = bit_or(none, bit_or(large, larger));
  return {select(stay, k, below.place), bit_and(logical_not(stay), logical_not(other)), none};
}

// ---- one step

/// Columns of the step's multipliers and of what they multiply, [b, n]; the second pair is zero for steps of one.
struct Update {
  Value w1, w2, x1, x2;
};

Update update_of(Value a, Value k, const Pivot& pivot, bool hermitian) {
  const Value last = full_like(k, static_cast<double>(a.dim(1) - 1));
  const Value next = minimum(plus(k, 1), last);
  const Value column = line(a, k, 2), second = line(a, next, 2);
  const Dims& dims = column.dims();
  const Value place = index_along(a.builder(), dims, 1);
  const Value two = spread(pivot.two, dims);
  const Value first_row = add(spread(k, dims), convert(two, DType::kS32));
  const Value below = compare(place, first_row, Compare::kGt);
  const Value nothing = full_like(column, 0);
  const Value x1 = select(below, column, nothing);
  const Value x2 = select(bit_and(below, two), second, nothing);
  const Value d1 = pick(column, k), d2 = pick(second, next), e = pick(column, next);
  const auto guarded = [](Value x, Value holds) { return select(holds, x, full_like(x, 1)); };
  const Value d = guarded(d1, logical_not(bit_or(pivot.none, pivot.two)));
  // Steps of two: X D^-1 with D = [[d1, e'], [e, d2]], scaled by e as LAPACK does.
  const Value low = guarded(e, pivot.two), high = partner(low, hermitian);
  const Value p = stablehlo::divide(d1, low), q = stablehlo::divide(d2, high);
  const Value denominator = guarded(subtract(multiply(p, q), full_like(p, 1)), pivot.two);
  const auto over = [&](Value x, Value by) { return stablehlo::divide(x, spread(by, dims)); };
  const auto times = [&](Value x, Value by) { return multiply(x, spread(by, dims)); };
  const Value pair1 = over(subtract(over(times(x1, q), low), over(x2, high)), denominator);
  const Value pair2 = over(subtract(over(times(x2, p), high), over(x1, low)), denominator);
  const Value w1 = select(spread(pivot.none, dims), x1, over(x1, d));
  return {select(two, pair1, w1), select(two, pair2, nothing), x1, x2};
}

/// State: A (trailing part in full), k, pivots [b, n], info.
std::vector<Value> eliminate(std::span<const Value> state, bool hermitian) {
  const Dims dims = state[0].dims();
  const int64_t n = dims[1];
  Builder& builder = state[0].builder();
  const Value active = compare(state[1], full_like(state[1], static_cast<double>(n)), Compare::kLt);
  const Value k = minimum(state[1], full_like(state[1], static_cast<double>(n - 1)));
  const Pivot pivot = choose_pivot(state[0], k);
  const Value two = convert(pivot.two, DType::kS32);
  const Value moved = add(k, two);
  const Value trailing_column = compare(index_along(builder, dims, 2), spread(k, dims), Compare::kGe);
  const Value trailing_row = compare(index_along(builder, dims, 1), spread(k, dims), Compare::kGe);
  const Value swapped =
      exchange(exchange(state[0], moved, pivot.row, 1, trailing_column), moved, pivot.row, 2, trailing_row);

  const Update u = update_of(swapped, k, pivot, hermitian);
  const auto outer = [&](Value w, Value x) {
    return multiply(broadcast_in_dim(w, dims, {0, 1}), broadcast_in_dim(partner(x, hermitian), dims, {0, 2}));
  };
  const Value zero_column = spread(pivot.none, dims);
  Value next = select(zero_column, swapped, subtract(subtract(swapped, outer(u.w1, u.x1)), outer(u.w2, u.x2)));
  if (hermitian && is_complex(next.dtype())) {
    const Value diagonal = is_equal(entry_index(next, 0), entry_index(next, 1));
    next = select(bit_and(diagonal, trailing_column), as_type(real(next), next.dtype()), next);
  }
  const Value row = index_along(builder, dims, 1), column = index_along(builder, dims, 2);
  const Value below = compare(row, spread(moved, dims), Compare::kGt);
  const Value in_first = bit_and(below, is_equal(column, spread(k, dims)));
  const Value in_second = bit_and(bit_and(below, spread(pivot.two, dims)), is_equal(column, spread(plus(k, 1), dims)));
  next = select(in_first, broadcast_in_dim(u.w1, dims, {0, 1}), next);
  next = select(in_second, broadcast_in_dim(u.w2, dims, {0, 1}), next);

  const Value place = index_along(builder, state[2].dims(), 1);
  const Value here = spread(k, place.dims());
  const Value covered =
      bit_and(compare(place, here, Compare::kGe), compare(place, spread(moved, place.dims()), Compare::kLe));
  const Value one_based = plus(pivot.row, 1);
  const Value entry = select(pivot.two, negate(one_based), one_based);
  const Value pivots = select(bit_and(covered, spread(active, place.dims())), spread(entry, place.dims()), state[2]);
  const Value first_bad = bit_and(bit_and(active, pivot.none), is_equal(state[3], full_like(state[3], 0)));
  const Value steps = select(active, plus(two, 1), full_like(two, 0));
  return {select_matrix(active, next, state[0]), add(state[1], steps), pivots, select(first_bad, plus(k, 1), state[3])};
}

/// self, hermitian, check_errors -> LD, pivots, info.
std::vector<Value> linalg_ldl_factor_ex(const OpCall& call) {
  const Value x = flatten_batch(call.tensor(0));
  const bool hermitian = call.boolean(1);
  if (x.type().numel() == 0) return {zero_result(call, 0), zero_result(call, 1), zero_result(call, 2)};
  const int64_t b = x.dim(0), n = x.dim(1);
  Builder& builder = x.builder();
  const Value strict = triangle(x, true, 1);
  const Value other = hermitian ? adjoint(strict) : transposed(strict);
  const Value diagonal = hermitian ? as_type(real_part(x), x.dtype()) : x;
  const Value full = select(is_equal(entry_index(x, 0), entry_index(x, 1)), diagonal, add(strict, other));
  const Value zeros = builder.constant(int64_t{0}, {DType::kS32, {b}});
  const Value state[] = {full, zeros, builder.constant(int64_t{0}, {DType::kS32, {b, n}}), zeros};
  const auto last = while_loop(
      state,
      [&](std::span<const Value> v) {
        const Value going = compare(v[1], full_like(v[1], static_cast<double>(n)), Compare::kLt);
        return std::vector<Value>{reduce(going, Reducer::kOr, {0})};
      },
      [&](std::span<const Value> v) { return eliminate(v, hermitian); });
  if (call.boolean(2)) {
    check_none(call, above_zero(last[3]),
               "torch.linalg.ldl_factor_ex: The factorization found a column of zeros, so D is singular");
  }
  return {to_result(call, 0, triangle(last[0], true)), to_result(call, 1, last[2]), to_result(call, 2, last[3])};
}

// ---- systems

/// Entry i + amount of the second axis in place i, for an amount of 1 or -1; zero where there is none.
Value moved(Value x, int64_t amount) {
  Dims low(x.rank(), 0), high(x.rank(), 0), start(x.rank(), 0), limit = x.dims();
  (amount > 0 ? high : low)[1] = 1;
  if (amount > 0) {
    start[1] += 1;
    limit[1] += 1;
  }
  const Value zero = x.builder().constant(int64_t{0}, TensorType{x.dtype(), {}});
  return slice(pad(x, zero, low, high, Dims(x.rank(), 0)), start, limit, Dims(x.rank(), 1));
}

/// What packed factors describe: A with rows and columns in the order of `permutation` (i32[b, n]) is L D L' with a
/// unit triangle L. Entry i of `first` (i1[b, n]) tells whether a block of two begins there.
struct Ldl {
  Value l, permutation, first;
};

/// LAPACK leaves the multipliers of earlier columns where they were; here they follow their rows.
Ldl unpacked(Value packed, Value pivots) {
  const Dims dims = packed.dims();
  const int64_t b = dims[0], n = dims[1];
  Builder& builder = packed.builder();
  const TensorType flags{DType::kBool, {b}};
  const Value state[] = {triangle(packed, true, 1), index_along(builder, {b, n, 1}, 1),
                         builder.constant(int64_t{0}, {DType::kBool, {b, n}}), builder.constant(int64_t{0}, flags)};
  const Value fixed[] = {pivots};
  const auto last = counted_loop(number(builder, n), state, fixed, [&](Value i, std::span<const Value> v, auto rest) {
    const Value place = broadcast_to(i, {b});
    const Value entry = pick(rest[0], place);
    const Value in_two = compare(entry, full_like(entry, 0), Compare::kLt);
    const Value opens = bit_and(in_two, logical_not(v[3])), closes = bit_and(in_two, v[3]);
    const Value target = select(opens, place, plus(abs(entry), -1));
    const Value begin = subtract(place, convert(closes, DType::kS32));
    const Value earlier = compare(index_along(i.builder(), dims, 2), spread(begin, dims), Compare::kLt);
    const Value all = i.builder().constant(int64_t{1}, {DType::kBool, {b, n, 1}});
    const Value here = is_equal(index_along(i.builder(), {b, n}, 1), spread(place, {b, n}));
    return std::vector<Value>{exchange(v[0], place, target, 1, earlier), exchange(v[1], place, target, 1, all),
                              bit_or(v[2], bit_and(here, spread(opens, {b, n}))), opens};
  });
  // Below the first diagonal entry of a block of two stands D's, not a multiplier.
  const Value beside = is_equal(entry_index(packed, 0), plus(entry_index(packed, 1), 1));
  const Value of_d = bit_and(beside, broadcast_in_dim(last[2], dims, {0, 2}));
  return {select(of_d, full_like(packed, 0), last[0]), reshape(last[1], {b, n}), last[2]};
}

/// D^-1 y for the blocks on the diagonal of `packed`.
Value solve_blocks(Value packed, Value first, Value y, bool hermitian) {
  const Dims& dims = y.dims();
  const auto over_rows = [&](Value list) { return broadcast_in_dim(list, dims, {0, 1}); };
  const Value d = diagonal_below(packed, 0);
  const Value e = select(first, diagonal_below(packed, 1), full_like(d, 1));
  const Value other = partner(e, hermitian);
  const Value p = stablehlo::divide(d, e), q = stablehlo::divide(moved(d, 1), other);
  const Value determinant = subtract(multiply(p, q), full_like(p, 1));
  const Value safe = over_rows(select(first, determinant, full_like(p, 1)));
  const Value next = moved(y, 1);
  const auto over = [&](Value a, Value by) { return stablehlo::divide(stablehlo::divide(a, over_rows(by)), safe); };
  const Value upper = over(subtract(multiply(y, over_rows(q)), next), e);
  const Value lower = over(subtract(multiply(next, over_rows(p)), y), other);
  const Value alone = stablehlo::divide(y, over_rows(d));
  return select(over_rows(first), upper, select(over_rows(moved(first, -1)), moved(lower, -1), alone));
}

/// LD, pivots, B, hermitian.
std::vector<Value> linalg_ldl_solve(const OpCall& call) {
  const Dims& sizes = call.result_type().dims;
  if (call.result_type().numel() == 0) return {zero_result(call, 0)};
  const Dims batch = batch_of(sizes);
  const bool hermitian = call.boolean(3);
  const int64_t n = sizes[sizes.size() - 2];
  const Value packed = flatten_batch(broadcast_to(call.tensor(0), matrix_dims(batch, n, n)));
  Dims pivot_dims = batch;
  pivot_dims.push_back(n);
  const Value pivots = reshape(convert(broadcast_to(call.tensor(1), pivot_dims), DType::kS32), {product(batch), n});
  const Value outside = compare(abs(pivots), full_like(pivots, static_cast<double>(n)), Compare::kGt);
  check_none(call, outside, "linalg.ldl_solve: pivots must all satisfy |pivot| <= LD.size(-2). Are they ldl_factor's?",
             Code::kInvalidArgument);
  const Value b = flatten_batch(broadcast_to(call.tensor(2), sizes));
  const Ldl ldl = unpacked(packed, pivots);
  const Value y = solve_triangle(ldl.l, take_rows(b, ldl.permutation), true, true, true);
  const Value z = solve_blocks(packed, ldl.first, y, hermitian);
  const Transpose back = hermitian && is_complex(packed.dtype()) ? Transpose::kAdjoint : Transpose::kTranspose;
  const Value x = solve_triangle(ldl.l, z, true, true, true, back);
  return {to_result(call, 0, take_rows(x, inverse_permutation(ldl.permutation)))};
}

const Row kRows[] = {
    {.name = "linalg_ldl_factor_ex", .lower = linalg_ldl_factor_ex, .heavy = true},
    {.name = "linalg_ldl_solve", .lower = linalg_ldl_solve, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_ldl_rows() { return kRows; }

}  // namespace tpu::lowering
