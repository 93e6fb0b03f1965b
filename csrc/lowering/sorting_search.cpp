// Searching in sorted rows and counting into bins.

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

// Up to this many boundaries, comparing with all of them beats a chain of dependent gathers.
constexpr int64_t kCompareAll = 64;

/// True where a boundary stands before the place of a value: boundary < value, or <= for `right`. A NaN
/// value goes last.
Value stands_before(Value boundary, Value value, bool right) {
  // Written as "not at or after", so that a NaN on either side counts as before, as in PyTorch's search.
  return logical_not(compare(boundary, value, right ? Compare::kGt : Compare::kGe));
}

/// Places of `values` [rows, count] in sorted `boundaries` [rows, size]: one comparison with each.
Value search_all(Value boundaries, Value values, bool right) {
  Dims sizes = {values.dim(0), values.dim(1), boundaries.dim(1)};
  Value b = broadcast_in_dim(boundaries, sizes, {0, 2}), v = broadcast_in_dim(values, sizes, {0, 1});
  Value before = stands_before(b, v, right);
  if (is_floating(b.dtype())) {
    // NaN boundaries are last: they stand before a value only if that is NaN too.
    before = bit_and(before, logical_not(bit_and(is_nan(b), logical_not(is_nan(v)))));
  }
  return sum_over(convert(before, DType::kS32), {2}, false);
}

/// The same by binary search, one gather per halving.
Value search_halving(Value boundaries, Value values, bool right) {
  Builder& builder = values.builder();
  int64_t size = boundaries.dim(1);
  DType index = size <= INT32_MAX ? DType::kS32 : DType::kS64;
  TensorType type{index, values.dims()};
  int64_t steps = 0;
  while ((int64_t{1} << steps) <= size) ++steps;  // enough to shrink [0, size] to one place
  const Value init[] = {scalar(builder, int64_t{0}, DType::kS32), builder.constant(int64_t{0}, type),
                        builder.constant(size, type)};
  auto more = [&](std::span<const Value> v) -> std::vector<Value> {
    return {compare(v[0], scalar(builder, steps, DType::kS32), Compare::kLt)};
  };
  auto halve = [&](std::span<const Value> v) -> std::vector<Value> {
    Value low = v[1], high = v[2];
    Value middle = divide(add(low, high), builder.constant(int64_t{2}, type));
    Value probe = take_along(boundaries, middle);
    Value open = compare(low, high, Compare::kLt);
    Value before = stands_before(probe, values, right);
    Value one = builder.constant(int64_t{1}, type);
    return {add(v[0], scalar(builder, int64_t{1}, DType::kS32)), select(bit_and(open, before), add(middle, one), low),
            select(bit_and(open, logical_not(before)), middle, high)};
  };
  return while_loop(init, more, halve)[1];
}

/// Places of `values` in `boundaries`: 1-d boundaries serve all values, otherwise the leading sizes match.
Value search(Value boundaries, Value values, bool right) {
  Dims sizes = values.dims();
  int64_t size = boundaries.rank() == 0 ? 1 : boundaries.dim(boundaries.rank() - 1);
  int64_t rows = boundaries.rank() <= 1 ? 1
                 : product(sizes) == 0  ? 0
                                        : boundaries.type().numel() / std::max<int64_t>(size, 1);
  if (values.type().numel() == 0 || size == 0) return values.builder().constant(int64_t{0}, {DType::kS32, sizes});
  Value b = reshape(boundaries, {rows, size}), v = reshape(values, {rows, values.type().numel() / rows});
  Value places = size <= kCompareAll ? search_all(b, v, right) : search_halving(b, v, right);
  return reshape(places, sizes);
}

/// Comparison dtype of boundaries and values: PyTorch promotes the two tensors.
Value placed(const OpCall& call, Value boundaries, size_t value_arg, bool right) {
  DType dtype = call.promoted();
  Value values = call.operand(value_arg, dtype);
  Value places = search(convert_like_torch(boundaries, dtype), values, right);
  return reshape(convert(places, call.result_type().dtype), call.result_type().dims);
}

/// (self, boundaries, *, out_int32, right)
Results bucketize(const OpCall& call) {
  const Value boundaries = call.tensor(1);
  if (boundaries.rank() != 1) {
    throw Error(Code::kInvalidArgument,
                "boundaries tensor must be 1 dimension, but got dim(" + std::to_string(boundaries.rank()) + ")");
  }
  return {placed(call, boundaries, 0, call.boolean(3))};
}

/// (sorted_sequence, self, *, out_int32, right, side?, sorter?)
Results searchsorted(const OpCall& call) {
  Value sequence = call.tensor(0);
  bool right = call.boolean(3) || (!call.is_none(4) && call.string(4) == "right");
  if (call.has(5) && sequence.type().numel() != 0) {
    Value sorter = call.tensor(5);
    int64_t size = sequence.rank() == 0 ? 1 : sequence.dim(sequence.rank() - 1);
    int64_t rows = sequence.type().numel() / size;
    Value order = reshape(sorter, {rows, size});
    Value outside = bit_or(compare(order, full_like(order, 0.0), Compare::kLt),
                           compare(order, full_like(order, static_cast<double>(size)), Compare::kGe));
    call.check(reduce_over(outside, Reducer::kOr, {0, 1}, false), Code::kIndex,
               "torch.searchsorted(): sorter index out of range");
    sequence = reshape(take_along(reshape(sequence, {rows, size}), order), sequence.dims());
  }
  return {placed(call, sequence, 1, right)};
}

/// (self, bins, min, max): counts of equal-width bins; equal bounds mean the range of the data. Integers stay
/// integers, as on CUDA (the CPU refuses them).
Results histc(const OpCall& call) {
  const TensorType& type = call.result_type();
  Builder& builder = call.builder();
  Value x = call.tensor(0);
  const bool floats = is_floating(x.dtype());
  DType dtype = floats ? compute_type(x.dtype()) : DType::kS64;
  int64_t count = x.type().numel(), bins = call.integer(1);
  if (count == 0) return {builder.constant(0.0, type)};
  x = convert(reshape(x, {count}), dtype);
  Value low = call.operand(2, dtype), high = call.operand(3, dtype);
  Value given = compare(low, high, Compare::kNe);
  low = select(given, low, reduce_over(x, Reducer::kMinimum, {0}, false));
  high = select(given, high, reduce_over(x, Reducer::kMaximum, {0}, false));
  // All data equal: PyTorch widens the range by one on both sides.
  Value flat = compare(low, high, Compare::kEq), one = full_like(low, 1.0);
  low = select(flat, subtract(low, one), low);
  high = select(flat, add(high, one), high);
  if (floats) {
    call.check(logical_not(bit_and(is_finite(low), is_finite(high))), Code::kInvalidArgument,
               "torch.histc: range of [min, max] is not finite");
  }
  call.check(compare(low, high, Compare::kGt), Code::kInvalidArgument, "torch.histc: max must be larger than min");
  Value lows = broadcast_to(low, x.dims()), highs = broadcast_to(high, x.dims());
  Value inside = bit_and(compare(x, lows, Compare::kGe), compare(x, highs, Compare::kLe));
  Value distance = subtract(x, lows), range = subtract(highs, lows), width = full_like(x, static_cast<double>(bins));
  Value scaled = floats ? multiply(divide(distance, range), width) : divide(multiply(distance, width), range);
  Value bin = convert(select(inside, scaled, full_like(scaled, 0.0)), DType::kS32);
  bin = minimum(bin, full_like(bin, static_cast<double>(bins - 1)));  // the last bin includes its end
  stablehlo::ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  Value totals =
      scatter(builder.constant(0.0, {DType::kS32, {bins}}), reshape(bin, {count, 1}), convert(inside, DType::kS32),
              dims, [](std::span<const Value> v) -> std::vector<Value> { return {add(v[0], v[1])}; });
  return {convert(totals, type.dtype)};
}

constexpr Row kRows[] = {
    {"bucketize.Tensor", bucketize},       {"bucketize.Scalar", bucketize}, {"searchsorted.Tensor", searchsorted},
    {"searchsorted.Scalar", searchsorted}, {"histc", histc, 0, 0, 0, true},
};

}  // namespace

std::span<const Row> sorting_search_rows() { return kRows; }

}  // namespace tpu::lowering
