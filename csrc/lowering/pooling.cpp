// Max and average pooling with fixed windows, and their gradients. Each runs axis by axis; see pooling.h.

#include "lowering/pooling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tpu::lowering {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

Value replaces(const Located& candidate, const Located& best) {
  const Value padding = compare(best.index, full_like(best.index, 0), Compare::kLt);
  const Value larger = compare(candidate.value, best.value, Compare::kGt);
  const Value take = bit_or(padding, larger);
  if (!is_floating(candidate.value.dtype())) return take;
  return bit_or(take, compare(candidate.value, candidate.value, Compare::kNe));
}

Located better(const Located& a, const Located& b) {
  const Value earlier = compare(b.index, a.index, Compare::kLt);
  const Value equal = compare(b.value, a.value, Compare::kEq);
  Value take = bit_or(compare(b.value, a.value, Compare::kGt), bit_and(equal, earlier));
  if (is_floating(a.value.dtype())) {
    const Value a_nan = compare(a.value, a.value, Compare::kNe), b_nan = compare(b.value, b.value, Compare::kNe);
    take = bit_or(bit_and(take, logical_not(a_nan)), bit_and(b_nan, logical_not(bit_and(a_nan, earlier))));
  }
  const Value a_padding = compare(a.index, full_like(a.index, 0), Compare::kLt);
  const Value b_padding = compare(b.index, full_like(b.index, 0), Compare::kLt);
  take = bit_and(bit_or(take, a_padding), logical_not(b_padding));
  return {select(take, b.value, a.value), select(take, b.index, a.index)};
}

Value plane_index(Builder& builder, const Dims& sizes, size_t spatial) {
  const size_t leading = sizes.size() - spatial;
  const Dims plane(sizes.begin() + static_cast<ptrdiff_t>(leading), sizes.end());
  const Value flat = stablehlo::iota(builder, {DType::kS32, {product(plane)}}, 0);
  return broadcast_to(reshape(flat, plane), sizes);
}

Value scatter_planes(Value x, Value index, const Dims& sizes, size_t spatial, bool accumulate) {
  const size_t leading = x.rank() - spatial;
  Builder& builder = x.builder();
  int64_t planes = 1, entries = 1, size = 1;
  for (size_t i = 0; i < x.rank(); ++i) (i < leading ? planes : entries) *= x.dim(i);
  for (size_t i = leading; i < sizes.size(); ++i) size *= sizes[i];
  const Value zeros = builder.constant(0.0, TensorType{x.dtype(), {planes, size}});
  if (planes * entries * size == 0) return reshape(zeros, sizes);
  const Dims flat{planes, entries, 1};
  const Value parts[] = {stablehlo::iota(builder, {index.dtype(), flat}, 0), reshape(index, flat)};
  const ScatterDims dims{.inserted_window_dims = {0, 1}, .scatter_dims_to_operand_dims = {0, 1}, .index_vector_dim = 2};
  const auto combine = [accumulate](std::span<const Value> v) {
    return std::vector<Value>{accumulate ? add(v[0], v[1]) : v[1]};
  };
  return reshape(scatter(zeros, concatenate(parts, 2), reshape(x, {planes, entries}), dims, combine), sizes);
}

namespace {

/// Above this many taps along an axis, one reduce_window instead of one operation per tap.
constexpr int64_t kTapLimit = 48;

/// Lowest value of a type: what padding holds for a maximum.
Value lowest(Builder& builder, DType dtype) { return neutral(builder, Reducer::kMaximum, dtype); }

Dims per_dim(const Dims& list, size_t count, const Dims& fallback) {
  if (list.empty()) return fallback;
  return list.size() == count ? list : Dims(count, list[0]);
}

/// Kernel, stride and padding (and dilation) of `spatial` trailing dims, from consecutive arguments.
std::vector<AxisWindow> windows_of(const OpCall& call, size_t kernel, bool has_dilation, const Dims& in,
                                   const Dims& out, size_t spatial) {
  const Dims taps = per_dim(call.ints(kernel), spatial, {});
  const Dims stride = per_dim(call.ints_or(kernel + 1, {}), spatial, taps);
  const Dims padding = per_dim(call.ints(kernel + 2), spatial, Dims(spatial, 0));
  const Dims dilation = has_dilation ? per_dim(call.ints(kernel + 3), spatial, Dims(spatial, 1)) : Dims(spatial, 1);
  std::vector<AxisWindow> windows;
  for (size_t i = 0; i < spatial; ++i) {
    const size_t axis = in.size() - spatial + i;
    windows.push_back({axis, in[axis], out[axis], taps[i], stride[i], padding[i], dilation[i]});
  }
  return windows;
}

/// `x` padded (or cropped) along the window's axis so that every tap is a slice of it.
Value padded(Value x, const AxisWindow& w, Value fill) {
  const int64_t used = (w.out - 1) * w.stride + (w.taps - 1) * w.dilation + 1;
  Dims low(x.rank(), 0), high(x.rank(), 0);
  low[w.axis] = w.padding;
  high[w.axis] = used - w.size - w.padding;
  if (low[w.axis] == 0 && high[w.axis] == 0) return x;
  return pad(x, fill, low, high, Dims(x.rank(), 0));
}

/// Entries of tap `t` for all outputs, from padded().
Value tap_of(Value x, const AxisWindow& w, int64_t t) {
  Dims start(x.rank(), 0), limit = x.dims(), step(x.rank(), 1);
  start[w.axis] = t * w.dilation;
  limit[w.axis] = start[w.axis] + (w.out - 1) * w.stride + 1;
  step[w.axis] = w.stride;
  return slice(x, start, limit, step);
}

Window axis_window(size_t rank, const AxisWindow& w) {
  Window window{Dims(rank, 1), Dims(rank, 1), Dims(rank, 1), Dims(rank, 1), Dims(rank, 0), Dims(rank, 0)};
  window.sizes[w.axis] = w.taps;
  window.strides[w.axis] = w.stride;
  window.window_dilations[w.axis] = w.dilation;
  return window;
}

// ---- maximum

Located max_along(const Located& x, const AxisWindow& w) {
  Builder& builder = x.value.builder();
  const Value none = scalar(builder, int64_t{-1}, DType::kS32);
  const Located all{padded(x.value, w, lowest(builder, x.value.dtype())), padded(x.index, w, none)};
  if (w.taps > kTapLimit) {
    const Value inputs[] = {all.value, all.index}, init[] = {lowest(builder, x.value.dtype()), none};
    const auto best = reduce_window(inputs, init, axis_window(x.value.rank(), w), [](std::span<const Value> v) {
      const Located taken = better({v[0], v[1]}, {v[2], v[3]});
      return std::vector<Value>{taken.value, taken.index};
    });
    return {best[0], best[1]};
  }
  Located best{tap_of(all.value, w, 0), tap_of(all.index, w, 0)};
  for (int64_t t = 1; t < w.taps; ++t) {
    const Located next{tap_of(all.value, w, t), tap_of(all.index, w, t)};
    // The value chain stands alone, so that it is all that remains where nobody asks for the indices.
    best = {maximum(best.value, next.value), select(replaces(next, best), next.index, best.index)};
  }
  return best;
}

template <size_t spatial>
std::vector<Value> max_pool(const OpCall& call) {
  const Value x = call.tensor(0);
  const TensorType &type = call.result_type(0), &index_type = call.result_type(1);
  Builder& builder = call.builder();
  if (type.numel() == 0) return {builder.constant(0.0, type), builder.constant(int64_t{0}, index_type)};
  const auto windows = windows_of(call, 1, true, x.dims(), type.dims, spatial);
  Located best{x, plane_index(builder, x.dims(), spatial)};
  // Last axis first: what is kept is then the first of equals in row-major order.
  for (size_t i = spatial; i-- > 0;) best = max_along(best, windows[i]);
  return {best.value, convert(best.index, index_type.dtype)};
}

// ---- sums

Value sum_along(Value x, const AxisWindow& w) {
  const Value all = padded(x, w, scalar(x.builder(), 0.0, x.dtype()));
  if (w.stride == w.taps && w.dilation == 1) {
    // Windows that touch without overlap (the last may lack its tail): one dim per window, one per tap.
    Dims split = all.dims();
    split[w.axis] = w.out;
    split.insert(w.axis + 1, w.taps);
    return reduce(reshape(all, split), Reducer::kAdd, {static_cast<int64_t>(w.axis) + 1});
  }
  if (w.taps > kTapLimit) {
    const Value inputs[] = {all}, init[] = {scalar(x.builder(), 0.0, x.dtype())};
    return reduce_window(inputs, init, axis_window(x.rank(), w),
                         [](std::span<const Value> v) { return std::vector<Value>{add(v[0], v[1])}; })[0];
  }
  Value sum = tap_of(all, w, 0);
  for (int64_t t = 1; t < w.taps; ++t) sum = add(sum, tap_of(all, w, t));
  return sum;
}

/// Moves `x` to `offset` within `size` places of an axis, dropping what falls outside.
Value placed(Value x, size_t axis, int64_t offset, int64_t size) {
  Dims low(x.rank(), 0), high(x.rank(), 0);
  low[axis] = offset;
  high[axis] = size - x.dim(axis) - offset;
  return pad(x, scalar(x.builder(), 0.0, x.dtype()), low, high, Dims(x.rank(), 0));
}

/// Padded input positions, o * stride + t * dilation, come in `stride` residues; a tap reaches one of them, at
/// place o + shift.
struct Residue {
  int64_t residue, shift;
};

Residue residue_of(const AxisWindow& w, int64_t tap) {
  return {tap * w.dilation % w.stride, tap * w.dilation / w.stride};
}

/// Places per residue, enough for every padded position.
int64_t places(const AxisWindow& w) {
  const int64_t reached = (w.out - 1) * w.stride + (w.taps - 1) * w.dilation + 1;
  return (std::max(reached, w.size + w.padding) + w.stride - 1) / w.stride;
}

/// From padded positions to the input's.
Value unpadded(Value x, const AxisWindow& w) {
  Dims start(x.rank(), 0), limit = x.dims();
  start[w.axis] = w.padding;
  limit[w.axis] = w.padding + w.size;
  return slice(x, start, limit, Dims(x.rank(), 1));
}

/// The transpose of sum_along: every output's value added to all entries of its window.
Value spread_along(Value y, const AxisWindow& w) {
  const int64_t count = places(w);
  if (w.taps > kTapLimit && w.stride < w.taps) {
    AxisWindow reversed{w.axis, 0, w.size, w.taps, 1, 0, w.dilation};
    Dims low(y.rank(), 0), high(y.rank(), 0), interior(y.rank(), 0);
    const int64_t reach = (w.taps - 1) * w.dilation;
    low[w.axis] = reach - w.padding;
    high[w.axis] = w.size + reach - ((w.out - 1) * w.stride + 1) - low[w.axis];
    interior[w.axis] = w.stride - 1;
    const Value inputs[] = {pad(y, scalar(y.builder(), 0.0, y.dtype()), low, high, interior)};
    const Value init[] = {scalar(y.builder(), 0.0, y.dtype())};
    return reduce_window(inputs, init, axis_window(y.rank(), reversed),
                         [](std::span<const Value> v) { return std::vector<Value>{add(v[0], v[1])}; })[0];
  }
  std::vector<Value> sums(static_cast<size_t>(w.stride));
  for (int64_t t = 0; t < w.taps; ++t) {
    const Residue r = residue_of(w, t);
    const Value part = placed(y, w.axis, r.shift, count);
    Value& sum = sums[static_cast<size_t>(r.residue)];
    sum = sum.defined() ? add(sum, part) : part;
  }
  Dims single = y.dims(), merged = y.dims();
  single[w.axis] = count;
  merged[w.axis] = count * w.stride;
  const Value zero = y.builder().constant(0.0, TensorType{y.dtype(), single});
  single.insert(w.axis + 1, 1);
  std::vector<Value> parts;
  for (const Value& sum : sums) parts.push_back(reshape(sum.defined() ? sum : zero, single));
  return unpadded(reshape(concatenate(parts, static_cast<int64_t>(w.axis) + 1), merged), w);
}

/// Number of input entries under each window of an axis, as `dtype`[out].
Value counts_along(Builder& builder, const AxisWindow& w, bool include_padding, DType dtype) {
  const TensorType type{DType::kS64, {w.out}};
  const auto constant = [&](int64_t value) { return builder.constant(value, type); };
  const Value number = stablehlo::iota(builder, type, 0);
  const Value start = subtract(multiply(number, constant(w.stride)), constant(w.padding));
  Value end = minimum(add(start, constant(w.taps)), constant(w.size + w.padding));
  if (include_padding) return convert(subtract(end, start), dtype);
  end = minimum(end, constant(w.size));
  return convert(subtract(end, maximum(start, constant(0))), dtype);
}

/// What each window's sum is divided by, with the sizes of the pooled tensor.
Value divisor_of(Builder& builder, std::span<const AxisWindow> windows, const Dims& sizes, bool include_padding,
                 std::optional<int64_t> override, DType dtype) {
  if (override) return builder.constant(*override, TensorType{dtype, sizes});
  Value divisor;
  for (const AxisWindow& w : windows) {
    const Value counts = counts_along(builder, w, include_padding, dtype);
    const Value spread = broadcast_in_dim(counts, sizes, {static_cast<int64_t>(w.axis)});
    divisor = divisor.defined() ? multiply(divisor, spread) : spread;
  }
  return divisor;
}

/// self, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override.
template <size_t spatial>
std::vector<Value> avg_pool(const OpCall& call) {
  const Value x = call.tensor(0);
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const auto windows = windows_of(call, 1, false, x.dims(), type.dims, spatial);
  const DType dtype = compute_type(type.dtype);
  Value sum = convert(x, dtype);
  for (size_t i = spatial; i-- > 0;) sum = sum_along(sum, windows[i]);
  const auto override = call.is_none(6) ? std::nullopt : std::optional(call.integer(6));
  const Value divisor = divisor_of(call.builder(), windows, type.dims, call.boolean(5), override, dtype);
  return {convert(divide_exactly(sum, divisor), type.dtype)};
}

/// grad, self, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override.
template <size_t spatial>
std::vector<Value> avg_pool_backward(const OpCall& call) {
  const Value grad = call.tensor(0);
  const TensorType& type = call.result_type();
  if (grad.type().numel() == 0 || type.numel() == 0) return {call.builder().constant(0.0, type)};
  const auto windows = windows_of(call, 2, false, type.dims, grad.dims(), spatial);
  const DType dtype = compute_type(type.dtype);
  const auto override = call.is_none(7) ? std::nullopt : std::optional(call.integer(7));
  const Value divisor = divisor_of(call.builder(), windows, grad.dims(), call.boolean(6), override, dtype);
  Value x = divide_exactly(convert(grad, dtype), divisor);
  for (const AxisWindow& w : windows) x = spread_along(x, w);
  return {convert(x, type.dtype)};
}

// ---- gradient of the maximum

/// Position along the window's axis (i32, like `flat`) of plane positions `flat`.
Value position_along(Value flat, std::span<const AxisWindow> windows, size_t which) {
  int64_t inner = 1;
  for (size_t i = which + 1; i < windows.size(); ++i) inner *= windows[i].size;
  Value position = inner == 1 ? flat : stablehlo::divide(flat, full_like(flat, static_cast<double>(inner)));
  if (which > 0) position = remainder(position, full_like(position, static_cast<double>(windows[which].size)));
  return position;
}

/// Which outputs chose tap `t` of a window, given the chosen positions along its axis.
Value chose(Value position, const AxisWindow& w, int64_t t) {
  Builder& builder = position.builder();
  const TensorType line{DType::kS32, {w.out}};
  const Value start = multiply(stablehlo::iota(builder, line, 0), builder.constant(w.stride, line));
  const Value tap = add(start, builder.constant(t * w.dilation - w.padding, line));
  return compare(position, broadcast_in_dim(tap, position.dims(), {static_cast<int64_t>(w.axis)}), Compare::kEq);
}

/// Gradient by taps: for every combination of taps, the values that chose it, moved to their residue.
Value spread_by_taps(Value grad, Value index, std::span<const AxisWindow> windows) {
  const size_t spatial = windows.size(), rank = grad.rank();
  std::vector<Value> positions;
  for (size_t i = 0; i < spatial; ++i) positions.push_back(position_along(index, windows, i));
  Dims taps, strides, counts;
  for (const AxisWindow& w : windows) {
    taps.push_back(w.taps);
    strides.push_back(w.stride);
    counts.push_back(places(w));
  }
  std::vector<Value> sums(static_cast<size_t>(product(strides)));
  for (int64_t flat = 0; flat < product(taps); ++flat) {
    Value part = grad;
    int64_t rest = flat, residue = 0, scale = 1;
    Dims low(rank, 0), high(rank, 0);
    for (size_t i = spatial; i-- > 0;) {
      const AxisWindow& w = windows[i];
      const Residue r = residue_of(w, rest % w.taps);
      part = select(chose(positions[i], w, rest % w.taps), part, full_like(part, 0));
      rest /= w.taps;
      residue += r.residue * scale;
      scale *= w.stride;
      low[w.axis] = r.shift;
      high[w.axis] = counts[i] - w.out - r.shift;
    }
    part = pad(part, scalar(grad.builder(), 0.0, grad.dtype()), low, high, Dims(rank, 0));
    Value& sum = sums[static_cast<size_t>(residue)];
    sum = sum.defined() ? add(sum, part) : part;
  }
  // [residues..., leading..., counts...] -> [leading..., count, residue, count, residue...]
  const size_t leading = rank - spatial;
  Dims single = grad.dims();
  for (size_t i = 0; i < spatial; ++i) single[leading + i] = counts[i];
  const Value zero = grad.builder().constant(0.0, TensorType{grad.dtype(), single});
  Dims stacked = single, split = strides, order, merged = single;
  stacked.insert(0, 1);
  for (int64_t size : single) split.push_back(size);
  for (size_t i = 0; i < leading; ++i) order.push_back(static_cast<int64_t>(spatial + i));
  for (size_t i = 0; i < spatial; ++i) {
    order.push_back(static_cast<int64_t>(spatial + leading + i));
    order.push_back(static_cast<int64_t>(i));
    merged[leading + i] = counts[i] * strides[i];
  }
  std::vector<Value> parts;
  for (const Value& sum : sums) parts.push_back(reshape(sum.defined() ? sum : zero, stacked));
  Value result = reshape(transpose(reshape(concatenate(parts, 0), split), order), merged);
  for (const AxisWindow& w : windows) result = unpadded(result, w);
  return result;
}

/// grad, self, kernel, stride, padding, dilation, ceil_mode, indices.
template <size_t spatial>
std::vector<Value> max_pool_backward(const OpCall& call) {
  const Value grad = call.tensor(0), index = convert(call.tensor(7), DType::kS32);
  const TensorType& type = call.result_type();
  if (grad.type().numel() == 0 || type.numel() == 0) return {call.builder().constant(0.0, type)};
  const auto windows = windows_of(call, 2, true, type.dims, grad.dims(), spatial);
  const Value y = convert(grad, compute_type(type.dtype));
  int64_t taps = 1;
  for (const AxisWindow& w : windows) taps *= w.taps;
  const Value x =
      taps <= kTapLimit ? spread_by_taps(y, index, windows) : scatter_planes(y, index, type.dims, spatial, true);
  return {convert(x, type.dtype)};
}

const Row kRows[] = {
    {.name = "max_pool2d_with_indices", .lower = max_pool<2>, .heavy = true},
    {.name = "max_pool3d_with_indices", .lower = max_pool<3>, .heavy = true},
    {.name = "max_pool2d_with_indices_backward", .lower = max_pool_backward<2>, .heavy = true},
    {.name = "max_pool3d_with_indices_backward", .lower = max_pool_backward<3>, .heavy = true},
    {.name = "avg_pool2d", .lower = avg_pool<2>, .heavy = true},
    {.name = "avg_pool3d", .lower = avg_pool<3>, .heavy = true},
    {.name = "avg_pool2d_backward", .lower = avg_pool_backward<2>, .heavy = true},
    {.name = "avg_pool3d_backward", .lower = avg_pool_backward<3>, .heavy = true},
};

}  // namespace

std::span<const Row> pooling_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    for (const Row& row : pooling_adaptive_rows()) all.push_back(row);
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
