// Sorting and what is read off a sorted row: top-k, order statistics, the most frequent value. Searching
// and histograms are in sorting_search.cpp; this file exports the rows of both.

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"
#include "lowering/table.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

struct Sorted {
  Value values;
  Value indices;  // as `positions`
};

/// Stable sort along `axis`. NaN counts as greater than every number, as in PyTorch; -0 equals 0.
Sorted sort_along(Value x, int64_t axis, bool descending) {
  Value order = positions(x, axis);
  DType dtype = x.dtype();
  if (dtype == DType::kBool) x = convert(x, DType::kU8);
  auto less = [descending](std::span<const Value> v) -> std::vector<Value> {
    Value a = descending ? v[1] : v[0], b = descending ? v[0] : v[1];
    Value before = compare(a, b, Compare::kLt);
    if (is_floating(a.dtype())) before = bit_or(before, bit_and(compare(a, a, Compare::kEq), is_nan(b)));
    return {before};
  };
  const Value inputs[] = {x, order};
  std::vector<Value> sorted = sort(inputs, axis, true, less);
  return {convert_like_torch(sorted[0], dtype), sorted[1]};
}

/// (values, indices) in the shapes of the call's results.
Results shaped(const OpCall& call, Value values, Value indices) {
  return {reshape(values, call.result_type(0).dims), reshape(convert(indices, DType::kS64), call.result_type(1).dims)};
}

Results sort_default(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  Sorted s = sort_along(x, wrap_axis(call.integer(1), x.rank()), call.boolean(2));
  return shaped(call, s.values, s.indices);
}

/// (self, *, stable?, dim, descending): every sort here is stable.
Results sort_stable(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  Sorted s = sort_along(x, wrap_axis(call.integer(2), x.rank()), call.boolean(3));
  return shaped(call, s.values, s.indices);
}

/// (self, k, dim, largest, sorted): always sorted, which `sorted=False` allows.
Results topk(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  int64_t k = call.integer(1), axis = wrap_axis(call.integer(2), x.rank());
  Sorted s = sort_along(x, axis, call.boolean(3));
  return shaped(call, slice_axis(s.values, axis, 0, k), slice_axis(s.indices, axis, 0, k));
}

/// (self, k, dim, keepdim): the k-th smallest, counted from 1.
Results kthvalue(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  int64_t k = call.integer(1), axis = wrap_axis(call.integer(2), x.rank());
  if (k < 1 || k > x.dim(axis)) {
    throw Error(Code::kInvalidArgument,
                "kthvalue(): selected number k out of range for dimension " + std::to_string(axis));
  }
  Sorted s = sort_along(x, axis, false);
  return shaped(call, slice_axis(s.values, axis, k - 1, k), slice_axis(s.indices, axis, k - 1, k));
}

/// The one element along `axis` whose position equals `wanted` (kept as size 1).
Value pick(Value x, Value wanted, int64_t axis) {
  Value hit = compare(positions(x, axis), expand_kept(wanted, x.dims()), Compare::kEq);
  if (x.dtype() == DType::kBool) return reduce_over(bit_and(hit, x), Reducer::kOr, {axis}, true);
  Value lowest = broadcast_to(neutral(x.builder(), Reducer::kMaximum, x.dtype()), x.dims());
  return reduce_over(select(hit, x, lowest), Reducer::kMaximum, {axis}, true);
}

/// Lower median along `axis`. With NaN in a row: the first NaN, or the median of the rest if `ignore_nan`.
Sorted median_along(Value x, int64_t axis, bool ignore_nan) {
  Sorted s = sort_along(x, axis, false);
  int64_t size = x.dim(axis);
  if (!is_floating(x.dtype())) {
    int64_t middle = (size - 1) / 2;
    return {slice_axis(s.values, axis, middle, middle + 1), slice_axis(s.indices, axis, middle, middle + 1)};
  }
  DType counter = s.indices.dtype();
  Value nans = sum_over(convert(is_nan(x), counter), {axis}, true);
  Value numbers = subtract(full_like(nans, static_cast<double>(size)), nans);
  Value zero = full_like(nans, 0.0), one = full_like(nans, 1.0), two = full_like(nans, 2.0);
  Value wanted;
  if (ignore_nan) {
    wanted = divide(maximum(subtract(numbers, one), zero), two);
  } else {
    // Sorted last, so the first NaN stands right after the numbers.
    wanted = select(compare(nans, zero, Compare::kGt), numbers, full_like(nans, static_cast<double>((size - 1) / 2)));
  }
  return {pick(s.values, wanted, axis), pick(s.indices, wanted, axis)};
}

template <bool kIgnoreNan>
Results median_all(const OpCall& call) {
  Value x = call.tensor(0);
  int64_t count = x.type().numel();
  if (count == 0) {
    double empty = is_floating(x.dtype()) ? NAN : 0.0;
    if (!is_floating(x.dtype())) {
      // PyTorch's CPU kernel returns the type's lowest value for an empty integer tensor.
      return {neutral(call.builder(), Reducer::kMaximum, x.dtype())};
    }
    return {scalar(call.builder(), empty, x.dtype())};
  }
  return {reshape(median_along(reshape(x, {count}), 0, kIgnoreNan).values, call.result_type().dims)};
}

template <bool kIgnoreNan>
Results median_dim(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  Sorted m = median_along(x, wrap_axis(call.integer(1), x.rank()), kIgnoreNan);
  return shaped(call, m.values, m.indices);
}

/// (self, dim, keepdim): the most frequent value, the smallest of several, and where it stands last.
Results mode(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  int64_t axis = wrap_axis(call.integer(1), x.rank()), size = x.dim(axis);
  Sorted s = sort_along(x, axis, false);
  Value position = positions(x, axis);
  // A run starts where a value differs from the one before it; the running maximum of those positions is
  // where the current run began.
  Value starts = full_like(position, 0.0);
  if (size > 1) {
    Value differs = compare(slice_axis(s.values, axis, 1, size), slice_axis(s.values, axis, 0, size - 1), Compare::kNe);
    Dims low(x.rank(), 0), none(x.rank(), 0);
    low[axis] = 1;
    differs = pad(differs, scalar(call.builder(), int64_t{0}, DType::kBool), low, none, none);
    starts = select(differs, position, starts);
  }
  Value zero = scalar(call.builder(), int64_t{0}, position.dtype());
  Value began = inclusive_scan(starts, axis, zero, [](Value a, Value b) { return maximum(a, b); });
  // The first position with the longest run so far is the end of the smallest most frequent value.
  Value winner = extreme(subtract(position, began), Reducer::kMaximum, axis).indices;
  return shaped(call, pick(s.values, winner, axis), pick(s.indices, winner, axis));
}

constexpr Row kRows[] = {
    {"sort", sort_default, 0, 0, 0, true},
    {"sort.stable", sort_stable, 0, 0, 0, true},
    {"topk", topk, 0, 0, 0, true},
    {"kthvalue", kthvalue, 0, 0, 0, true},
    {"median", median_all<false>, 0, 0, 0, true},
    {"nanmedian", median_all<true>, 0, 0, 0, true},
    {"median.dim", median_dim<false>, 0, 0, 0, true},
    {"nanmedian.dim", median_dim<true>, 0, 0, 0, true},
    {"mode", mode, 0, 0, 0, true},
};

}  // namespace

std::span<const Row> sorting_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    std::span<const Row> search = sorting_search_rows();
    all.insert(all.end(), search.begin(), search.end());
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
