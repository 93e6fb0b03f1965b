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

// ---- packed sort: key, position and the sign of a zero in one int64

bool is_packable(DType dtype) { return byte_size(dtype) <= 4 && (is_integral_or_bool(dtype) || is_floating(dtype)); }

Value int32_like(Value like, int64_t value) { return like.builder().constant(value, {DType::kS32, like.dims()}); }

/// int32 key of the same order as the elements: NaN is greater than every number, -0 equals 0.
Value order_key(Value x) {
  if (x.dtype() == DType::kU32) return bit_xor(bitcast_convert(x, DType::kS32), int32_like(x, INT32_MIN));
  if (!is_floating(x.dtype())) return convert(x, DType::kS32);
  x = convert(x, DType::kF32);  // exact for every narrower float
  Value bits = bitcast_convert(x, DType::kS32), zero = int32_like(x, 0), highest = int32_like(x, INT32_MAX);
  bits = select(compare(bits, int32_like(x, INT32_MIN), Compare::kEq), zero, bits);
  // The magnitude bits of negative floats count downwards.
  Value key = select(compare(bits, zero, Compare::kLt), bit_xor(bits, highest), bits);
  return select(is_nan(x), highest, key);
}

/// Inverse of order_key; `negative_zero` says which zeros had a sign.
Value from_order_key(Value key, Value negative_zero, DType dtype) {
  if (dtype == DType::kU32) return bitcast_convert(bit_xor(key, int32_like(key, INT32_MIN)), dtype);
  if (!is_floating(dtype)) return convert_like_torch(key, dtype);
  Value bits = select(compare(key, int32_like(key, 0), Compare::kLt), bit_xor(key, int32_like(key, INT32_MAX)), key);
  bits = select(negative_zero, int32_like(key, INT32_MIN), bits);
  return convert(bitcast_convert(bits, DType::kF32), dtype);
}

Sorted sort_packed(Value x, int64_t axis, bool descending) {
  Builder& builder = x.builder();
  TensorType wide{DType::kS64, x.dims()};
  auto constant = [&](int64_t value) { return builder.constant(value, wide); };
  Value key = order_key(x);
  // Complemented keys ascend where the elements descend, so equal elements stay in order either way.
  if (descending) key = logical_not(key);
  Value packed =
      bit_or(shift_left(convert(key, DType::kS64), constant(32)), shift_left(iota(builder, wide, axis), constant(1)));
  if (is_floating(x.dtype())) {
    Value bits = bitcast_convert(convert(x, DType::kF32), DType::kS32);
    packed = bit_or(packed, convert(compare(bits, int32_like(x, INT32_MIN), Compare::kEq), DType::kS64));
  }
  const Value inputs[] = {packed};
  packed = sort(inputs, axis, false,
                [](std::span<const Value> v) -> std::vector<Value> { return {compare(v[0], v[1], Compare::kLt)}; })[0];
  key = convert(shift_right_arithmetic(packed, constant(32)), DType::kS32);
  if (descending) key = logical_not(key);
  Value low = convert(packed, DType::kU32);
  Value one = builder.constant(int64_t{1}, low.type());
  Value negative_zero = convert_like_torch(bit_and(low, one), DType::kBool);
  return {from_order_key(key, negative_zero, x.dtype()), convert(shift_right_logical(low, one), DType::kS32)};
}

/// Sort of values beside their positions, for 64-bit elements and axes of 2^31 and more.
Sorted sort_pairs(Value x, int64_t axis, bool descending) {
  auto before = [descending](std::span<const Value> v) -> std::vector<Value> {
    Value a = descending ? v[1] : v[0], b = descending ? v[0] : v[1];
    if (!is_floating(a.dtype())) return {compare(a, b, Compare::kLt)};
    Value nan_last = bit_and(compare(a, a, Compare::kEq), is_nan(b));
    return {bit_or(compare(a, b, Compare::kLt), nan_last)};
  };
  const Value inputs[] = {x, positions(x, axis)};
  std::vector<Value> sorted = sort(inputs, axis, true, before);
  return {sorted[0], sorted[1]};
}

/// Stable sort along `axis`. NaN counts as greater than every number, as in PyTorch. One packed operand and
/// a plain comparison sort two to three times faster than a pair with a comparison that knows NaN, and some
/// compilers accept only plain comparisons.
Sorted sort_along(Value x, int64_t axis, bool descending) {
  if (is_packable(x.dtype()) && x.dim(axis) <= INT32_MAX) return sort_packed(x, axis, descending);
  return sort_pairs(x, axis, descending);
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

/// True when every value of `dtype` is a float32.
bool fits_float32(DType dtype) {
  if (is_floating(dtype)) return dtype != DType::kF64;
  return dtype == DType::kBool || (is_integer(dtype) && byte_size(dtype) <= 2);
}

/// Top k of the last dim by the compilers' own operation, which selects instead of sorting. It orders float32
/// by its bits with the sign, so NaN is made positive, and the sign bit is flipped to get the smallest.
Sorted select_top(Value x, int64_t k, bool largest) {
  DType dtype = x.dtype();
  x = convert(x, DType::kF32);
  x = select(is_nan(x), full_like(x, NAN), x);
  auto flip = [&](Value v) {
    Value bits = bitcast_convert(v, DType::kU32);
    return bitcast_convert(bit_xor(bits, x.builder().constant(int64_t{1} << 31, bits.type())), DType::kF32);
  };
  std::vector<Value> top = top_k(largest ? x : flip(x), k);
  return {convert_like_torch(largest ? top[0] : flip(top[0]), dtype), top[1]};
}

Value swap_axes(Value x, int64_t a, int64_t b) {
  Dims order = iota(x.rank());
  std::swap(order[a], order[b]);
  return transpose(x, order);
}

/// (self, k, dim, largest, sorted): always sorted, which `sorted=False` allows.
Results topk(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  if (x.dtype() == DType::kBool) throw Error(Code::kInvalidArgument, "topk does not support bool dtypes");
  int64_t k = call.integer(1), axis = wrap_axis(call.integer(2), x.rank());
  int64_t last = static_cast<int64_t>(x.rank()) - 1;
  if (fits_float32(x.dtype()) && x.type().numel() > 0 && k > 0) {
    Sorted top = select_top(swap_axes(x, axis, last), k, call.boolean(3));
    return shaped(call, swap_axes(top.values, axis, last), swap_axes(top.indices, axis, last));
  }
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
  int64_t axis = wrap_axis(call.integer(1), x.rank());
  require_elements(call, x, axis);
  Sorted m = median_along(x, axis, kIgnoreNan);
  return shaped(call, m.values, m.indices);
}

/// (self, dim, keepdim): the most frequent value, the smallest of several, and where it stands last.
Results mode(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  int64_t axis = wrap_axis(call.integer(1), x.rank()), size = x.dim(axis);
  require_elements(call, x, axis);
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
