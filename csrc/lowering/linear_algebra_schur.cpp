// Schur form by Hessenberg reduction and the implicitly shifted QR algorithm (Golub and Van Loan, Matrix Computations,
// 7.4 and 7.5): double shifts in real arithmetic, single ones in complex arithmetic. A sweep chases a bulge of two or
// three rows down the diagonal, one loop step for each row. All matrices of a batch sweep together, each over the last
// block of its own that has not split yet.

#include <algorithm>
#include <optional>

#include "lowering/linear_algebra_eig.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

namespace {

Value number(Builder& builder, int64_t value) { return scalar(builder, value, DType::kS32); }

/// Where each matrix is cut: [b, 2] indices along the batch and another axis.
Value places(Value first) {
  const int64_t b = first.dim(0);
  const Value parts[] = {index_along(first.builder(), {b, 1}, 0), reshape(first, {b, 1})};
  return concatenate(parts, 1);
}

/// The same place for all matrices of a batch needs no gather: start indices of a slice.
std::optional<std::vector<Value>> common_place(Value x, Value first, int64_t axis) {
  if (first.rank() > 0 && x.dim(0) > 1) return std::nullopt;
  std::vector<Value> start(3, number(x.builder(), 0));
  start[axis] = reshape(first, {});
  return start;
}

}  // namespace

Value lines_at(Value x, Value first, int64_t count, int64_t axis) {
  Dims sizes = x.dims();
  sizes[axis] = count;
  if (const auto start = common_place(x, first, axis)) return dynamic_slice(x, *start, sizes);
  GatherDims dims;
  dims.offset_dims = {1, 2};
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0, axis};
  dims.index_vector_dim = 1;
  sizes[0] = 1;
  return gather(x, places(first), dims, sizes, true);
}

Value with_lines_at(Value x, Value first, Value lines, int64_t axis) {
  if (const auto start = common_place(x, first, axis)) return dynamic_update_slice(x, lines, *start);
  ScatterDims dims;
  dims.update_window_dims = {1, 2};
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0, axis};
  dims.index_vector_dim = 1;
  const Region take_new = [](std::span<const Value> pair) { return std::vector<Value>{pair[1]}; };
  return scatter(x, places(first), lines, dims, take_new, true, true);
}

namespace {

/// `x` - column row^T for [b, m, n], [b, m] and [b, n].
Value minus_outer(Value x, Value column, Value row) {
  return subtract(x, multiply(broadcast_in_dim(column, x.dims(), {0, 1}), broadcast_in_dim(row, x.dims(), {0, 2})));
}

Value scaled_rows(Value x, Value factor) { return multiply(x, broadcast_in_dim(factor, x.dims(), {0})); }

/// Columns [b, m, p] times H, few columns.
Value reflect_columns(const Reflection& h, Value columns) {
  const Value weights = broadcast_in_dim(h.vector, columns.dims(), {0, 2});
  const Value sums = reduce(multiply(columns, weights), Reducer::kAdd, {2});
  return minus_outer(columns, sums, scaled_rows(conjugate(h.vector), h.tau));
}

}  // namespace

Value reflect_rows(const Reflection& h, Value rows) {
  const Value weights = broadcast_in_dim(conjugate(h.vector), rows.dims(), {0, 1});
  const Value sums = reduce(multiply(weights, rows), Reducer::kAdd, {1});
  return minus_outer(rows, scaled_rows(h.vector, conjugate(h.tau)), sums);
}

std::vector<Value> similar(const Reflection& h, Value place, Value rows, std::span<const Value> state) {
  const int64_t p = h.vector.dim(1);
  const Value left = with_lines_at(state[0], place, rows, 1);
  std::vector<Value> next{with_lines_at(left, place, reflect_columns(h, lines_at(left, place, p, 2)), 2)};
  if (state.size() > 1) {
    // (Z H)^T: rows of Z^T are reflected by the conjugate of H^H.
    const Reflection turned{conjugate(h.vector), conjugate(h.tau), h.beta};
    next.push_back(with_lines_at(state[1], place, reflect_rows(turned, lines_at(state[1], place, p, 1)), 1));
  }
  return next;
}

namespace {

// ---- Hessenberg form

/// Matrices times column vectors, [b, m, n] x [b, n] -> [b, m].
Value times_vector(Value matrix, Value column) {
  const int64_t b = matrix.dim(0);
  return reshape(matrix_product(matrix, reshape(column, {b, column.dim(1), 1})), {b, matrix.dim(1)});
}

/// H^H A H for the reflection that clears column `k` below the subdiagonal, and Z H. State: A and, if wanted, Z^T.
std::vector<Value> reduce_column(Value k, std::span<const Value> state) {
  const Value a = state[0];
  const int64_t b = a.dim(0), n = a.dim(1);
  const Value zero = number(k.builder(), 0), below = add(k, number(k.builder(), 1));
  const Value start[] = {zero, zero, k};
  const Value column = reshape(dynamic_slice(a, start, {b, n, 1}), {b, n});
  const Reflection h = reflection_of(column, below);
  const Value bra = conjugate(h.vector);
  const Value right = minus_outer(a, scaled_rows(times_vector(a, h.vector), h.tau), bra);
  const Value both = minus_outer(right, scaled_rows(h.vector, conjugate(h.tau)), vector_product(bra, right));
  // Exact zeros in the column.
  const Value row = index_along(k.builder(), {b, n}, 1), at = broadcast_to(below, {b, n});
  const Value upper = select(compare(row, at, Compare::kLt), column, full_like(column, 0));
  const Value cleared = select(compare(row, at, Compare::kEq), broadcast_in_dim(h.beta, {b, n}, {0}), upper);
  std::vector<Value> next{dynamic_update_slice(both, reshape(cleared, {b, n, 1}), start)};
  if (state.size() > 1) {
    // (Z H)^T = Z^T - tau conj(v) (Z v)^T.
    next.push_back(minus_outer(state[1], scaled_rows(bra, h.tau), vector_product(h.vector, state[1])));
  }
  return next;
}

std::vector<Value> hessenberg_form(Value a, bool vectors) {
  const int64_t n = a.dim(1);
  std::vector<Value> state{a};
  if (vectors) state.push_back(identity_like(a));
  if (n <= 2) return state;
  return counted_loop(number(a.builder(), n - 2), state, {},
                      [](Value k, auto carried, auto) { return reduce_column(k, carried); });
}

// ---- where to sweep

/// Entry `index` (i32[b], anything outside counts as 0) of each row of a [b, n] value.
Value entry_at(Value list, Value index) {
  const Value here =
      compare(index_along(list.builder(), list.dims(), 1), broadcast_in_dim(index, list.dims(), {0}), Compare::kEq);
  return reduce(select(here, list, full_like(list, 0)), Reducer::kAdd, {1});
}

}  // namespace

Value diagonal_below(Value a, int64_t offset) {
  const Value row = entry_index(a, 0), column = entry_index(a, 1);
  const Value on = compare(row, add(column, full_like(column, static_cast<double>(offset))), Compare::kEq);
  return reduce(select(on, a, full_like(a, 0)), Reducer::kAdd, {1});
}

namespace {}  // namespace

Value shifted_down(Value x) {
  const int64_t b = x.dim(0), n = x.dim(1);
  const Value padded = pad(x, x.builder().constant(0.0, TensorType{x.dtype(), {}}), {0, 1}, {0, 0}, {0, 0});
  return slice(padded, {0, 0}, {b, n}, {1, 1});
}

namespace {

/// Number of the last true entry of each row of an i1[b, n] value, -1 where there is none.
Value last_true(Value flags) {
  const Value place = index_along(flags.builder(), flags.dims(), 1);
  return reduce(select(flags, place, full_like(place, -1)), Reducer::kMaximum, {1});
}

/// i1[b, n]: entry i where the subdiagonal between rows i and i + 1 is not negligible beside the diagonal.
Value links_of(Value a) {
  const Value diagonal = cheap_size(diagonal_below(a, 0)), sub = cheap_size(diagonal_below(a, 1));
  const int64_t b = diagonal.dim(0), n = diagonal.dim(1);
  const Value zero = scalar(a.builder(), 0.0, diagonal.dtype());
  const Value next = slice(pad(diagonal, zero, {0, 0}, {0, 1}, {0, 0}), {0, 1}, {b, n + 1}, {1, 1});
  const Value beside = multiply(add(diagonal, next), full_like(diagonal, epsilon_of(a.dtype())));
  return compare(sub, maximum(beside, full_like(beside, smallest_normal(a.dtype()))), Compare::kGt);
}

/// `a` with exact zeros where rows are not linked.
Value split_at(Value a, Value links) {
  const Value row = entry_index(a, 0), column = entry_index(a, 1);
  const Value below = compare(row, add(column, full_like(column, 1)), Compare::kEq);
  const Value gone = bit_and(below, logical_not(broadcast_in_dim(links, a.dims(), {0, 2})));
  return select(gone, full_like(a, 0), a);
}

/// Rows of the block to sweep over, i32[b]; high is -1 where all blocks are small enough.
struct Range {
  Value low, high;
};

Range unsplit_range(Value links, bool real) {
  // Row i ends a chain of at least two rows, of three where blocks of two are wanted (a real matrix).
  const Value before = shifted_down(links);
  const Value ends = real ? bit_and(before, shifted_down(before)) : before;
  const Value high = last_true(ends);
  const Value place = index_along(links.builder(), links.dims(), 1);
  const Value above = compare(place, broadcast_in_dim(high, links.dims(), {0}), Compare::kLt);
  const Value low = last_true(bit_and(above, logical_not(links)));
  return {add(low, full_like(low, 1)), high};
}

// ---- shifts

/// The trailing 2 x 2 of each range, [[a, b], [c, d]].
struct Trailing {
  Value a, b, c, d;
};

Trailing trailing_of(Value h, Value high) {
  const Value diagonal = diagonal_below(h, 0), sub = diagonal_below(h, 1), super = diagonal_below(h, -1);
  const Value before = subtract(high, full_like(high, 1));
  // Entry j of the superdiagonal's sums is of column j.
  return {entry_at(diagonal, before), entry_at(super, high), entry_at(sub, before), entry_at(diagonal, high)};
}

/// Principal square root of a complex value, without cancellation.
Value complex_root(Value z) {
  const Value re = real(z), im = imag(z), size = abs(z);
  const Value half = full_like(re, 0.5), zero = full_like(re, 0);
  const Value large = sqrt(multiply(add(size, abs(re)), half));
  const Value none = compare(large, zero, Compare::kEq);
  const Value small = stablehlo::divide(multiply(abs(im), half), select(none, full_like(re, 1), large));
  const Value right = compare(re, zero, Compare::kGe), up = compare(im, zero, Compare::kGe);
  const Value root_im = select(right, small, large);
  return complex(select(right, large, small), select(up, root_im, negate(root_im)));
}

/// The first column of what the shifts make of the range's matrix, up to a factor: [b, 3] for the double shift (both
/// eigenvalues of the trailing 2 x 2; the nearer one twice when they are real).
Value double_shift_column(Value h, const Range& range, Value exceptional) {
  const Trailing t = trailing_of(h, range.high);
  const Value half = full_like(t.a, 0.5), zero = full_like(t.a, 0);
  const Value mean = multiply(add(t.a, t.d), half), spread = multiply(subtract(t.a, t.d), half);
  const Value square = add(multiply(spread, spread), multiply(t.b, t.c));
  const Value are_real = compare(square, zero, Compare::kGe);
  const Value root = sqrt(maximum(square, zero));
  // Nearer to d: mean + root where d is above the mean.
  const Value nearer = add(mean, select(compare(t.d, mean, Compare::kGe), root, negate(root)));
  Value sum = select(are_real, add(nearer, nearer), add(mean, mean));
  Value product = select(are_real, multiply(nearer, nearer), subtract(multiply(t.a, t.d), multiply(t.b, t.c)));
  // Shifts of no meaning but another size, for the rare matrix on which the usual ones go round in circles.
  const Value kick = add(abs(t.c), multiply(abs(t.b), half));
  const Value odd = add(t.d, multiply(kick, full_like(kick, 0.75)));
  sum = select(exceptional, add(odd, odd), sum);
  product =
      select(exceptional, add(multiply(odd, odd), multiply(multiply(kick, kick), full_like(kick, 0.4375))), product);

  const Value second = add(range.low, full_like(range.low, 1));
  const Value diagonal = diagonal_below(h, 0), sub = diagonal_below(h, 1), super = diagonal_below(h, -1);
  const Value h00 = entry_at(diagonal, range.low), h11 = entry_at(diagonal, second);
  const Value h10 = entry_at(sub, range.low), h21 = entry_at(sub, second), h01 = entry_at(super, second);
  const Value parts[] = {
      add(add(multiply(h00, subtract(h00, sum)), multiply(h01, h10)), product),
      multiply(h10, subtract(add(h00, h11), sum)),
      multiply(h10, h21),
  };
  std::vector<Value> columns;
  for (const Value part : parts) columns.push_back(reshape(part, {part.dim(0), 1}));
  return concatenate(columns, 1);
}

/// Same for a single complex shift: [b, 2].
Value single_shift_column(Value h, const Range& range, Value exceptional) {
  const Trailing t = trailing_of(h, range.high);
  const Value half = full_like(t.a, 0.5);
  const Value spread = multiply(subtract(t.a, t.d), half);
  const Value root = complex_root(add(multiply(spread, spread), multiply(t.b, t.c)));
  // d + spread +- root: the smaller distance from d, found without cancellation as -bc over the larger.
  const Value plus = add(spread, root), minus = subtract(spread, root);
  const Value larger = select(compare(cheap_size(plus), cheap_size(minus), Compare::kGe), plus, minus);
  const Value none = compare(cheap_size(larger), full_like(real(larger), 0), Compare::kEq);
  const Value ratio = stablehlo::divide(multiply(t.b, t.c), select(none, full_like(larger, 1), larger));
  Value shift = subtract(t.d, ratio);
  const Value kick = multiply(cheap_size(t.c), full_like(real(t.c), 0.75));
  shift = select(exceptional, add(t.d, as_type(kick, t.d.dtype())), shift);
  const Value h00 = entry_at(diagonal_below(h, 0), range.low), h10 = entry_at(diagonal_below(h, 1), range.low);
  const Value parts[] = {reshape(subtract(h00, shift), {h00.dim(0), 1}), reshape(h10, {h10.dim(0), 1})};
  return concatenate(parts, 1);
}

// ---- chasing the bulge

/// One step of a sweep over `range`: a reflection of p rows and columns from the (low + i)-th on.
std::vector<Value> chase(Value i, std::span<const Value> state, Value first_column, const Range& range) {
  const Value t = state[0];
  const int64_t b = t.dim(0), size = t.dim(1), p = first_column.dim(1);
  Builder& builder = i.builder();
  const Value k = add(range.low, broadcast_to(i, {b}));
  const Value active = compare(k, range.high, Compare::kLt);
  const Value place = clamp(number(builder, 0), k, number(builder, size - p));

  // The bulge: what stands left of these rows, within the range.
  const Value rows = lines_at(t, place, p, 1);
  const Value before = broadcast_in_dim(subtract(k, full_like(k, 1)), rows.dims(), {0});
  const Value is_left = compare(index_along(builder, rows.dims(), 2), before, Compare::kEq);
  const Value bulge = reduce(select(is_left, rows, full_like(rows, 0)), Reducer::kAdd, {2});
  const Value starts = broadcast_to(compare(i, number(builder, 0), Compare::kEq), {b});
  const Value x = select_matrix(starts, first_column, bulge);
  const Value row = add(index_along(builder, x.dims(), 1), broadcast_in_dim(k, x.dims(), {0}));
  const Value inside = compare(row, broadcast_in_dim(range.high, x.dims(), {0}), Compare::kLe);
  Reflection h = reflection_of(select(inside, x, full_like(x, 0)), number(builder, 0));
  h.tau = select(active, h.tau, full_like(h.tau, 0));

  // Exactly (beta, 0, 0) where the bulge was.
  const Value head = compare(index_along(builder, rows.dims(), 1), full_like(before, 0), Compare::kEq);
  const Value cleared = select(head, broadcast_in_dim(h.beta, rows.dims(), {0}), full_like(rows, 0));
  const Value chased = broadcast_in_dim(bit_and(active, logical_not(starts)), rows.dims(), {0});
  const Value replaced = bit_and(bit_and(is_left, chased), broadcast_in_dim(inside, rows.dims(), {0, 1}));
  return similar(h, place, select(replaced, cleared, reflect_rows(h, rows)), state);
}

/// A sweep over the last unsplit block of each matrix. Carried: count of sweeps, whether one was needed, the end of the
/// last sweep's block and how often it has been that one (i32[b]), T, and Z^T if wanted.
std::vector<Value> sweep(std::span<const Value> carried) {
  Builder& builder = carried[0].builder();
  const Value links = links_of(carried[4]);
  const bool is_real = !is_complex(carried[4].dtype());
  const Range range = unsplit_range(links, is_real);
  std::vector<Value> state{split_at(carried[4], links)};
  state.insert(state.end(), carried.begin() + 5, carried.end());

  const Value same = compare(range.high, carried[2], Compare::kEq);
  const Value tries = select(same, add(carried[3], full_like(carried[3], 1)), full_like(carried[3], 0));
  const Value tenth = compare(remainder(tries, full_like(tries, 10)), full_like(tries, 9), Compare::kEq);
  const Value first =
      is_real ? double_shift_column(state[0], range, tenth) : single_shift_column(state[0], range, tenth);
  const Value steps = reduce(subtract(range.high, range.low), Reducer::kMaximum, {0});
  const Value fixed[] = {first, range.low, range.high};
  const auto swept = counted_loop(
      steps, state, fixed, [](Value i, auto state, auto rest) { return chase(i, state, rest[0], {rest[1], rest[2]}); });
  const Value needed = reduce(compare(range.high, full_like(range.high, 0), Compare::kGt), Reducer::kOr, {0});
  std::vector<Value> next{add(carried[0], number(builder, 1)), needed, range.high, tries};
  next.insert(next.end(), swept.begin(), swept.end());
  return next;
}

/// LAPACK's limit for a matrix: 30 sweeps for each row.
int64_t most_sweeps(int64_t n) { return 30 * std::max<int64_t>(n, 10); }

}  // namespace

Schur schur_form(Value a, bool vectors) {
  Builder& builder = a.builder();
  const int64_t b = a.dim(0), n = a.dim(1);
  const bool is_real = !is_complex(a.dtype());
  std::vector<Value> state = hessenberg_form(a, vectors);
  Value failed = builder.constant(int64_t{0}, {DType::kBool, {b}});
  if (n > (is_real ? 2 : 1)) {
    // A double shift works on three rows, of which the last may lie one below the matrix.
    if (is_real) state[0] = grown(state[0], n + 1, n + 1);
    if (is_real && vectors) state[1] = grown(state[1], n + 1, n);
    const Value none = builder.constant(int64_t{-1}, {DType::kS32, {b}});
    std::vector<Value> carried{number(builder, 0), builder.constant(int64_t{1}, {DType::kBool, {}}), none,
                               full_like(none, 0)};
    carried.insert(carried.end(), state.begin(), state.end());
    const auto last = while_loop(
        carried,
        [&](std::span<const Value> v) {
          return std::vector<Value>{bit_and(v[1], compare(v[0], number(v[0].builder(), most_sweeps(n)), Compare::kLt))};
        },
        sweep);
    state.assign(last.begin() + 4, last.end());
    state[0] = part_of(part_of(state[0], 0, 0, n), 1, 0, n);
    if (vectors) state[1] = part_of(state[1], 0, 0, n);
  }
  const Value links = links_of(state[0]);
  if (n > 0)
    failed =
        compare(unsplit_range(links, is_real).high, builder.constant(int64_t{0}, {DType::kS32, {b}}), Compare::kGt);
  return {split_at(state[0], links), vectors ? state[1] : Value(), links, failed};
}

}  // namespace tpu::lowering
