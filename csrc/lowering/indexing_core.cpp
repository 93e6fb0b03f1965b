// Helpers of indexing.h: index checks, and the StableHLO gather and scatter forms that the rows share.

#include <limits>

#include "lowering/indexing.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::GatherDims;
using stablehlo::Reducer;
using stablehlo::Region;
using stablehlo::ScatterDims;

DType index_dtype(int64_t limit) { return limit <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64; }

Value any_true(Value mask) { return reduce(mask, Reducer::kOr, iota(mask.rank())); }

namespace {

std::string range_message(int64_t axis, int64_t size) {
  return "index is out of bounds for dimension " + std::to_string(axis) + " with size " + std::to_string(size);
}

/// The larger (kGt) or smaller (kLt) of two numbers, NaN if either is. Written out because the CPU plugin's
/// scatter loses NaN in stablehlo.maximum and minimum, although its elementwise code does not.
Value extreme(Value a, Value b, Compare wins) {
  if (!is_floating(a.dtype())) return wins == Compare::kGt ? maximum(a, b) : minimum(a, b);
  return select(bit_or(compare(a, b, wins), compare(a, a, Compare::kNe)), a, b);
}

Region combiner(Combine combine) {
  return [combine](std::span<const Value> a) -> std::vector<Value> {
    switch (combine) {
      case Combine::kReplace:
        return {a[1]};
      case Combine::kAdd:
        return {add(a[0], a[1])};
      case Combine::kMultiply:
        return {multiply(a[0], a[1])};
      case Combine::kMaximum:
        return {extreme(a[0], a[1], Compare::kGt)};
      case Combine::kMinimum:
        return {extreme(a[0], a[1], Compare::kLt)};
    }
    throw Error(Code::kInternal, "scatter: unknown combination");
  };
}

/// All axes of `rank` but `axis`.
Dims other_axes(size_t rank, int64_t axis) {
  Dims axes = iota(rank);
  axes.erase(static_cast<size_t>(axis));
  return axes;
}

/// `x` cut to `sizes`, from position 0 of each dim.
Value leading_part(Value x, const Dims& sizes) {
  if (x.dims() == sizes) return x;
  return slice(x, Dims(sizes.size(), 0), sizes, Dims(sizes.size(), 1));
}

}  // namespace

Value checked_index(const OpCall& call, Value index, int64_t size, int64_t axis, const IndexRule& rule) {
  const std::string message = !rule.message.empty() ? rule.message
                              : rule.present        ? "index is out of bounds for dimension " + std::to_string(axis)
                                                    : range_message(axis, size);
  if (size == 0 && index.type().numel() > 0) throw Error(rule.code, message);
  // Narrow types widen first: `size` may not fit in them, and 255 of a uint8 must not read as -1.
  if (byte_size(index.dtype()) < 4) index = convert(index, DType::kS32);
  if (index.dtype() == DType::kS32 && index_dtype(size) == DType::kS64) index = convert(index, DType::kS64);
  const Value limit = rule.present ? broadcast_to(convert(*rule.present, index.dtype()), index.dims())
                                   : full_like(index, static_cast<double>(size));
  const Value zero = full_like(index, 0);
  const Value is_negative = compare(index, zero, Compare::kLt);
  const Value wrapped = rule.wrap_negative ? select(is_negative, add(index, limit), index) : index;
  const Value bad = bit_or(compare(wrapped, zero, Compare::kLt), compare(wrapped, limit, Compare::kGe));
  call.check(any_true(bad), rule.code, message);
  return convert(wrapped, index_dtype(size));
}

Value take_slices(Value x, Value index, int64_t axis) {
  GatherDims dims;
  Dims sizes = x.dims();
  sizes[axis] = 1;
  const auto index_rank = static_cast<int64_t>(index.rank());
  for (int64_t i = 0; i < static_cast<int64_t>(x.rank()); ++i) {
    if (i != axis) dims.offset_dims.push_back(i < axis ? i : i + index_rank - 1);
  }
  dims.collapsed_slice_dims = {axis};
  dims.start_index_map = {axis};
  dims.index_vector_dim = index_rank;
  return gather(x, index, dims, sizes);
}

Value take_along_axis(Value x, Value index, int64_t axis) {
  Dims part = index.dims();
  part[axis] = x.dim(axis);
  x = leading_part(x, part);
  GatherDims dims;
  dims.collapsed_slice_dims = {axis};
  dims.start_index_map = {axis};
  dims.operand_batching_dims = other_axes(x.rank(), axis);
  dims.start_indices_batching_dims = dims.operand_batching_dims;
  dims.index_vector_dim = static_cast<int64_t>(index.rank());
  return gather(x, index, dims, Dims(x.rank(), 1));
}

Value scatter_slices(Value x, Value index, Value updates, int64_t axis, Combine combine) {
  ScatterDims dims;
  dims.update_window_dims = other_axes(x.rank(), axis);
  dims.inserted_window_dims = {axis};
  dims.scatter_dims_to_operand_dims = {axis};
  dims.index_vector_dim = 1;
  return scatter(x, index, updates, dims, combiner(combine));
}

Value scatter_along_axis(Value x, Value index, Value updates, int64_t axis, Combine combine) {
  Dims part = index.dims();
  part[axis] = x.dim(axis);
  ScatterDims dims;
  dims.inserted_window_dims = {axis};
  dims.input_batching_dims = other_axes(x.rank(), axis);
  dims.scatter_indices_batching_dims = dims.input_batching_dims;
  dims.scatter_dims_to_operand_dims = {axis};
  dims.index_vector_dim = static_cast<int64_t>(index.rank());
  const Value changed = scatter(leading_part(x, part), index, updates, dims, combiner(combine));
  if (part == x.dims()) return changed;
  const std::vector<Value> origin(x.rank(), scalar(x.builder(), int64_t{0}, DType::kS32));
  return dynamic_update_slice(x, changed, origin);
}

Value running_sum(Value x) {
  const int64_t size = x.dim(0);
  if (size == 0) return x;
  // Compilers turn a window over the whole prefix into a scan by blocks.
  const stablehlo::Window window{{size}, {1}, {1}, {1}, {size - 1}, {0}};
  const Value zero = stablehlo::neutral(x.builder(), Reducer::kAdd, x.dtype());
  return stablehlo::reduce_window(std::vector<Value>{x}, std::vector<Value>{zero}, window,
                                  [](std::span<const Value> a) { return std::vector<Value>{add(a[0], a[1])}; })[0];
}

}  // namespace tpu::lowering
