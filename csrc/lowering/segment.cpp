// segment_reduce and its gradient: reductions over consecutive runs along one axis, the runs given by lengths or
// by offsets.

#include <algorithm>
#include <cmath>
#include <limits>

#include "lowering/indexing.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

/// The runs of one call. Dims before the axis are merged into rows, those after it into columns; a segment has
/// one number over all rows.
struct Segments {
  int64_t rows, length, columns;  // data is [rows, length, columns]
  int64_t count;                  // segments per row
  Value number;                   // [rows * length], segment of each element; rows * count for none
  Value sizes;                    // [rows * count], int64
};

/// Begins (count per row) and ends of the segments, int64 [rows, count].
std::pair<Value, Value> bounds(const OpCall& call, size_t lengths, size_t offsets, int64_t rows) {
  if (call.has(lengths)) {
    const Value given = call.tensor(lengths);
    const int64_t count = given.type().numel() / std::max<int64_t>(rows, 1);
    const Value sizes = convert(reshape(given, {rows, count}), DType::kS64);
    if (count == 0) return {sizes, sizes};
    const stablehlo::Window window{{1, count}, {1, 1}, {1, 1}, {1, 1}, {0, count - 1}, {0, 0}};
    const Value zero = stablehlo::neutral(call.builder(), Reducer::kAdd, DType::kS64);
    const Value ends =
        stablehlo::reduce_window(std::vector<Value>{sizes}, std::vector<Value>{zero}, window,
                                 [](std::span<const Value> a) { return std::vector<Value>{add(a[0], a[1])}; })[0];
    return {subtract(ends, sizes), ends};
  }
  const Value given = call.tensor(offsets);
  const int64_t points = given.type().numel() / std::max<int64_t>(rows, 1);
  const Value all = convert(reshape(given, {rows, points}), DType::kS64);
  return {slice(all, {0, 0}, {rows, points - 1}, {1, 1}), slice(all, {0, 1}, {rows, points}, {1, 1})};
}

Segments segments_of(const OpCall& call, Value data, size_t lengths, size_t offsets, int64_t axis) {
  Builder& builder = call.builder();
  const Dims& dims = data.dims();
  Segments s;
  s.rows = product(std::span(dims).subspan(0, static_cast<size_t>(axis)));
  s.length = dims[static_cast<size_t>(axis)];
  s.columns = product(std::span(dims).subspan(static_cast<size_t>(axis) + 1));
  if (!call.has(lengths) && !call.has(offsets)) {
    throw Error(Code::kNotImplemented, "segment_reduce without lengths or offsets");
  }
  const auto [begins, ends] = bounds(call, lengths, offsets, s.rows);
  s.count = begins.dim(1);
  s.sizes = reshape(subtract(ends, begins), {s.rows * s.count});
  const int64_t elements = s.rows * s.length;
  // A mark where each segment begins; their running count numbers the elements. Empty segments at the end of a
  // row mark the start of the next one, where they count as already begun.
  const Value row = stablehlo::iota(builder, {DType::kS64, begins.dims()}, 0);
  const Value places = add(multiply(row, full_like(row, static_cast<double>(s.length))), begins);
  const Value none = builder.constant(int64_t{0}, {DType::kS64, {elements}});
  const Value marks = full_like(reshape(places, {s.rows * s.count}), 1);
  const Value begun = running_sum(scatter_slices(none, reshape(places, marks.dims()), marks, 0, Combine::kAdd));
  s.number = subtract(begun, full_like(begun, 1));
  if (elements > 0 && s.count > 0) {
    const Value end = take_slices(reshape(ends, {s.rows * s.count}), s.number, 0);
    const Value place = reshape(stablehlo::iota(builder, {DType::kS64, {s.rows, s.length}}, 1), {elements});
    s.number =
        select(compare(place, end, Compare::kLt), s.number, full_like(s.number, static_cast<double>(s.rows * s.count)));
  }
  return s;
}

/// [segments, columns] from [elements, columns].
Value reduce_segments(const Segments& s, Value elements, double initial, Combine combine) {
  const Value start = elements.builder().constant(initial, {elements.dtype(), {s.rows * s.count, s.columns}});
  return scatter_slices(start, s.number, elements, 0, combine);
}

struct Rule {
  Combine combine;
  double initial;
};

Rule rule_named(const std::string& name) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (name == "sum" || name == "mean") return {Combine::kAdd, 0};
  if (name == "prod") return {Combine::kMultiply, 1};
  if (name == "max") return {Combine::kMaximum, -kInfinity};
  if (name == "min") return {Combine::kMinimum, kInfinity};
  throw Error(Code::kInvalidArgument, "segment_reduce: unknown reduction " + name);
}

/// Sizes of the segments as [segments, columns] of `dtype`.
Value spread_sizes(const Segments& s, DType dtype) {
  return broadcast_in_dim(convert(s.sizes, dtype), {s.rows * s.count, s.columns}, {0});
}

/// (data, reduce, lengths, indices, offsets, axis, unsafe, initial)
Results lower_segment_reduce(const OpCall& call) {
  const TensorType& type = call.result_type();
  const std::string name = call.string(1);
  const DType dtype = compute_type(type.dtype);
  const Value data = convert(call.tensor(0), dtype);
  const Segments s = segments_of(call, data, 2, 4, wrap_axis(call.integer_or(5, 0), data.rank()));
  if (!call.boolean_or(6, false) && call.has(2)) {
    const Value negative = compare(s.sizes, full_like(s.sizes, 0), Compare::kLt);
    call.check(any_true(negative), Code::kInvalidArgument, "lengths contains negative value!");
    const Value totals = reduce(reshape(s.sizes, {s.rows, s.count}), Reducer::kAdd, {1});
    const Value wrong = compare(totals, full_like(totals, static_cast<double>(s.length)), Compare::kNe);
    call.check(any_true(wrong), Code::kInvalidArgument,
               "Expected all rows of lengths along axis to sum to data.size(axis) when !unsafe.");
  }
  const Rule rule = rule_named(name);
  const auto initial = call.known(7);
  const Value elements = reshape(data, {s.rows * s.length, s.columns});
  Value reduced = reduce_segments(s, elements, initial ? initial->as_double() : rule.initial, rule.combine);
  if (name == "mean") {
    const Value sizes = spread_sizes(s, dtype);
    const Value zero = full_like(sizes, 0);
    const Value empty = initial ? reduced : full_like(reduced, std::nan(""));
    reduced = select(compare(sizes, zero, Compare::kEq), empty, divide(reduced, sizes));
  }
  return {convert(reshape(reduced, type.dims), type.dtype)};
}

/// Gradient of max and min: shared equally by the elements that attain the extreme.
Value extreme_gradient(const Segments& s, Value elements, Value output, Value grad) {
  const Value attained = take_slices(output, s.number, 0);
  const Value is_nan = compare(elements, elements, Compare::kNe);
  const Value hit = bit_or(is_nan, compare(elements, attained, Compare::kEq));
  const Value ones = convert(hit, elements.dtype());
  const Value count = take_slices(reduce_segments(s, ones, 0, Combine::kAdd), s.number, 0);
  const Value shared = divide(take_slices(grad, s.number, 0), maximum(count, full_like(count, 1)));
  return select(hit, shared, full_like(shared, 0));
}

/// Gradient of prod: for each element the product of the others, which at a zero is not output / element.
Value product_gradient(const Segments& s, Value elements, Value output, Value grad, double initial) {
  const Value is_zero = compare(elements, full_like(elements, 0), Compare::kEq);
  const Value zeros = reduce_segments(s, convert(is_zero, elements.dtype()), 0, Combine::kAdd);
  const Value others =
      reduce_segments(s, select(is_zero, full_like(elements, 1), elements), initial, Combine::kMultiply);
  const auto at_element = [&](Value x) { return take_slices(x, s.number, 0); };
  const Value only_zero = compare(at_element(zeros), full_like(elements, 1), Compare::kEq);
  const Value at_zero = select(only_zero, at_element(others), full_like(elements, 0));
  return multiply(at_element(grad), select(is_zero, at_zero, divide(at_element(output), elements)));
}

/// (grad, output, data, reduce, lengths, offsets, axis, initial)
Results lower_segment_reduce_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  const std::string name = call.string(3);
  const DType dtype = compute_type(type.dtype);
  const Value data = convert(call.tensor(2), dtype);
  const Segments s = segments_of(call, data, 4, 5, wrap_axis(call.integer_or(6, 0), data.rank()));
  if (type.numel() == 0 || s.count == 0) return {call.builder().constant(0.0, type)};
  const Dims by_segment{s.rows * s.count, s.columns};
  const Value elements = reshape(data, {s.rows * s.length, s.columns});
  const Value output = reshape(convert(call.tensor(1), dtype), by_segment);
  Value grad = reshape(convert(call.tensor(0), dtype), by_segment);
  Value result;
  if (name == "max" || name == "min") {
    result = extreme_gradient(s, elements, output, grad);
  } else if (name == "prod") {
    const auto initial = call.known(7);
    result = product_gradient(s, elements, output, grad, initial ? initial->as_double() : 1);
  } else {
    if (name == "mean") grad = divide(grad, spread_sizes(s, dtype));
    result = take_slices(grad, s.number, 0);
  }
  // Elements past the last segment of their row have no part in the output.
  const Value outside = compare(s.number, full_like(s.number, static_cast<double>(s.rows * s.count)), Compare::kGe);
  result = select(broadcast_in_dim(outside, result.dims(), {0}), full_like(result, 0), result);
  return {convert(reshape(result, type.dims), type.dtype)};
}

constexpr uint32_t bit(int i) { return 1U << i; }

const Row kRows[] = {
    {"segment_reduce", lower_segment_reduce, bit(7)},
    {"_segment_reduce_backward", lower_segment_reduce_backward, bit(7)},
};

}  // namespace

std::span<const Row> segment_rows() { return kRows; }

}  // namespace tpu::lowering
