// Pooling whose windows follow from the sizes (adaptive) or from random numbers (fractional), and unpooling.
//
// An axis is cut into bins by one gather, [size] -> [out, longest bin], and reduced over the bin; entries past a
// bin's end are masked. Where the sizes divide evenly the gather is a reshape.

#include <algorithm>

#include "lowering/indexing.h"
#include "lowering/pooling.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Bin o of `out` covers entries floor(o * size / out) to ceil((o + 1) * size / out) of an axis.
struct Bins {
  size_t axis;
  int64_t size, out;
  bool even() const { return size % out == 0; }
  int64_t start(int64_t o) const { return o * size / out; }
  int64_t end(int64_t o) const { return ((o + 1) * size + out - 1) / out; }
  int64_t longest() const {
    int64_t length = 1;
    // The pattern of lengths repeats, but a scan of `out` numbers costs nothing beside building a program.
    for (int64_t o = 0; o < out; ++o) length = std::max(length, end(o) - start(o));
    return length;
  }
};

/// First entry and length of every bin, [out]. 32 bits where they suffice: a TPU divides 64-bit integers by a long
/// sequence, and its compiler takes over a second for each.
std::pair<Value, Value> bounds_of(Builder& builder, const Bins& bins) {
  const TensorType type{index_dtype((bins.out + 1) * bins.size + bins.out), {bins.out}};
  const auto constant = [&](int64_t value) { return builder.constant(value, type); };
  const Value number = stablehlo::iota(builder, type, 0);
  const Value start = stablehlo::divide(multiply(number, constant(bins.size)), constant(bins.out));
  const Value above = add(multiply(add(number, constant(1)), constant(bins.size)), constant(bins.out - 1));
  return {start, subtract(stablehlo::divide(above, constant(bins.out)), start)};
}

/// `x` with its axis cut into [out, longest]; what lies past a bin's end is `fill` (0-d).
Value binned(Value x, const Bins& bins, Value fill) {
  Dims split = x.dims();
  split[bins.axis] = bins.out;
  const int64_t longest = bins.longest();
  split.insert(bins.axis + 1, longest);
  if (bins.even()) return reshape(x, split);
  Builder& builder = x.builder();
  const Dims table{bins.out, longest};
  const auto [start, length] = bounds_of(builder, bins);
  const Value tap = stablehlo::iota(builder, {start.dtype(), table}, 1);
  const Value entry = add(broadcast_in_dim(start, table, {0}), tap);
  const Value last = builder.constant(bins.size - 1, tap.type());
  const auto axis = static_cast<int64_t>(bins.axis);
  const Value picked = take_slices(x, reshape(minimum(entry, last), {bins.out * longest}), axis);
  const Value inside = compare(tap, broadcast_in_dim(length, table, {0}), Compare::kLt);
  return select(broadcast_in_dim(inside, split, {axis, axis + 1}), reshape(picked, split), broadcast_to(fill, split));
}

Value binned_sum(Value x, const Bins& bins) {
  const Value parts = binned(x, bins, scalar(x.builder(), 0.0, x.dtype()));
  return reduce(parts, Reducer::kAdd, {static_cast<int64_t>(bins.axis) + 1});
}

std::vector<Bins> bins_of(const Dims& in, const Dims& out, size_t spatial) {
  std::vector<Bins> bins;
  for (size_t axis = in.size() - spatial; axis < in.size(); ++axis) bins.push_back({axis, in[axis], out[axis]});
  return bins;
}

/// `x` divided by the length of the bin that each entry stands for.
Value divided_by_length(Value x, const Bins& bins) {
  if (bins.even()) return divide_exactly(x, full_like(x, static_cast<double>(bins.size / bins.out)));
  const Value length = convert(bounds_of(x.builder(), bins).second, x.dtype());
  return divide_exactly(x, broadcast_in_dim(length, x.dims(), {static_cast<int64_t>(bins.axis)}));
}

template <size_t spatial>
std::vector<Value> adaptive_avg_pool(const OpCall& call) {
  const Value input = call.tensor(0);
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  Value x = convert(input, compute_type(type.dtype));
  const auto bins = bins_of(x.dims(), type.dims, spatial);
  for (size_t i = spatial; i-- > 0;) x = binned_sum(x, bins[i]);
  for (const Bins& b : bins) x = divided_by_length(x, b);
  return {convert(x, type.dtype)};
}

/// grad, self. An input entry meets exactly the bins that cover it, which are the adaptive bins of the opposite
/// direction.
template <size_t spatial>
std::vector<Value> adaptive_avg_pool_backward(const OpCall& call) {
  const Value grad = call.tensor(0);
  const TensorType& type = call.result_type();
  if (type.numel() == 0 || grad.type().numel() == 0) return {call.builder().constant(0.0, type)};
  Value x = convert(grad, compute_type(type.dtype));
  for (const Bins& b : bins_of(type.dims, x.dims(), spatial)) x = divided_by_length(x, b);
  for (const Bins& b : bins_of(x.dims(), type.dims, spatial)) x = binned_sum(x, b);
  return {convert(x, type.dtype)};
}

/// Best entry over `axis`, whatever the order.
Located best_along(const Located& x, int64_t axis) {
  Builder& builder = x.value.builder();
  const Value inputs[] = {x.value, x.index};
  const Value init[] = {neutral(builder, Reducer::kMaximum, x.value.dtype()),
                        scalar(builder, int64_t{-1}, DType::kS32)};
  const auto result = reduce(inputs, init, {axis}, [](std::span<const Value> v) {
    const Located taken = better({v[0], v[1]}, {v[2], v[3]});
    return std::vector<Value>{taken.value, taken.index};
  });
  return {result[0], result[1]};
}

template <size_t spatial>
std::vector<Value> adaptive_max_pool(const OpCall& call) {
  const Value x = call.tensor(0);
  const TensorType &type = call.result_type(0), &index_type = call.result_type(1);
  Builder& builder = call.builder();
  if (type.numel() == 0) return {builder.constant(0.0, type), builder.constant(int64_t{0}, index_type)};
  Located best{x, plane_index(builder, x.dims(), spatial)};
  const auto bins = bins_of(x.dims(), type.dims, spatial);
  const Value lowest = neutral(builder, Reducer::kMaximum, x.dtype()), none = scalar(builder, int64_t{-1}, DType::kS32);
  for (size_t i = spatial; i-- > 0;) {
    const Located cut{binned(best.value, bins[i], lowest), binned(best.index, bins[i], none)};
    best = best_along(cut, static_cast<int64_t>(bins[i].axis) + 1);
  }
  return {best.value, convert(best.index, index_type.dtype)};
}

/// Gradient of any pooling that kept its indices: arguments `grad` first, indices last.
template <size_t spatial>
std::vector<Value> scatter_to_maxima(const OpCall& call) {
  const TensorType& type = call.result_type();
  const Value grad = convert(call.tensor(0), compute_type(type.dtype));
  const Value index = convert(call.tensor(call.size() - 1), DType::kS32);
  return {convert(scatter_planes(grad, index, type.dims, spatial, true), type.dtype)};
}

/// self, indices, output_size (and for 3 dims stride and padding, which only validate).
template <size_t spatial>
std::vector<Value> max_unpool(const OpCall& call) {
  const Value x = call.tensor(0), index = call.tensor(1);
  const TensorType& type = call.result_type();
  const Dims plane(type.dims.end() - spatial, type.dims.end());
  if (index.type().numel() > 0) {
    const Value below = compare(index, full_like(index, 0), Compare::kLt);
    const Value size = call.builder().constant(product(plane), index.type());
    const Value bad = bit_or(below, compare(index, size, Compare::kGe));
    call.check(reduce(bad, Reducer::kOr, iota(bad.rank())), Code::kInvalidArgument,
               "Found an invalid max index (output volumes are of size " + to_string(plane) + ")");
  }
  return {scatter_planes(x, index, type.dims, spatial, false)};
}

// ---- fractional max pooling

/// First entry of each window, s32[planes, out], from one random number per plane.
Value random_starts(Value sample, int64_t size, int64_t out, int64_t taps) {
  Builder& builder = sample.builder();
  const Dims sizes{sample.dim(0), out};
  const Value last = builder.constant(size - taps, TensorType{DType::kS32, sizes});
  if (out == 1) return last;
  const Value number = stablehlo::iota(builder, {sample.dtype(), sizes}, 1);
  const double step = static_cast<double>(size - taps);
  const Value alpha = stablehlo::divide(full_like(sample, step), full_like(sample, static_cast<double>(out - 1)));
  const auto spread = [&](Value x) { return broadcast_in_dim(x, sizes, {0}); };
  const Value upper = convert(multiply(add(number, spread(sample)), spread(alpha)), DType::kS32);
  const Value lower = convert(multiply(sample, alpha), DType::kS32);
  const Value is_last = compare(stablehlo::iota(builder, {DType::kS32, sizes}, 1),
                                full_like(last, static_cast<double>(out - 1)), Compare::kEq);
  return select(is_last, last, subtract(upper, spread(lower)));
}

/// x [planes, a, size, b] with windows of `taps` entries from `starts` [planes, out]: [planes, a, out, taps, b].
Value cut_windows(Value x, Value starts, int64_t taps) {
  Builder& builder = x.builder();
  const int64_t planes = x.dim(0), a = x.dim(1), b = x.dim(3), out = starts.dim(1);
  const Dims table{planes, out, taps};
  const Value entry = add(broadcast_in_dim(starts, table, {0, 1}), stablehlo::iota(builder, {DType::kS32, table}, 2));
  const Dims column{planes, out * taps, 1};
  const Value parts[] = {stablehlo::iota(builder, {DType::kS32, column}, 0), reshape(entry, column)};
  GatherDims dims;
  dims.offset_dims = {1, 3};
  dims.collapsed_slice_dims = {0, 2};
  dims.start_index_map = {0, 2};
  dims.index_vector_dim = 2;
  return reshape(gather(x, concatenate(parts, 2), dims, {1, a, 1, b}), {planes, a, out, taps, b});
}

/// self, kernel_size, output_size, random_samples [N, C, spatial].
template <size_t spatial>
std::vector<Value> fractional_max_pool(const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims taps = call.ints(1);
  const TensorType &type = call.result_type(0), &index_type = call.result_type(1);
  Builder& builder = call.builder();
  if (type.numel() == 0) return {builder.constant(0.0, type), builder.constant(int64_t{0}, index_type)};
  const size_t leading = x.rank() - spatial;
  const int64_t planes = product(Dims(x.dims().begin(), x.dims().begin() + static_cast<ptrdiff_t>(leading)));
  // An image without a batch may come with numbers for many; the first ones count.
  const auto draws = static_cast<int64_t>(spatial);
  const Value drawn = reshape(call.tensor(3), {call.tensor(3).type().numel() / draws, draws});
  const Value samples = slice(drawn, {0, 0}, {planes, draws}, {1, 1});
  Dims sizes(x.dims().begin() + static_cast<ptrdiff_t>(leading), x.dims().end());
  Located best{x, plane_index(builder, x.dims(), spatial)};
  for (size_t i = spatial; i-- > 0;) {
    // The kernel draws for 2 dims in the order width, height and for 3 dims in the order of the dims.
    const auto draw = static_cast<int64_t>(spatial == 2 ? spatial - 1 - i : i);
    const int64_t out = type.dims[leading + i];
    const Value sample = reshape(slice(samples, {0, draw}, {planes, draw + 1}, {1, 1}), {planes});
    const Value starts = random_starts(sample, sizes[i], out, taps[i]);
    const int64_t before = product(Dims(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(i)));
    const int64_t after = product(Dims(sizes.begin() + static_cast<ptrdiff_t>(i) + 1, sizes.end()));
    const Dims view{planes, before, sizes[i], after};
    const auto cut = [&](Value v) { return cut_windows(reshape(v, view), starts, taps[i]); };
    best = best_along({cut(best.value), cut(best.index)}, 3);
    sizes[i] = out;
  }
  return {reshape(best.value, type.dims), convert(reshape(best.index, index_type.dims), index_type.dtype)};
}

const Row kRows[] = {
    {.name = "_adaptive_avg_pool2d", .lower = adaptive_avg_pool<2>, .heavy = true},
    {.name = "_adaptive_avg_pool3d", .lower = adaptive_avg_pool<3>, .heavy = true},
    {.name = "_adaptive_avg_pool2d_backward", .lower = adaptive_avg_pool_backward<2>, .heavy = true},
    {.name = "_adaptive_avg_pool3d_backward", .lower = adaptive_avg_pool_backward<3>, .heavy = true},
    {.name = "adaptive_max_pool2d", .lower = adaptive_max_pool<2>, .heavy = true},
    {.name = "adaptive_max_pool3d", .lower = adaptive_max_pool<3>, .heavy = true},
    {.name = "adaptive_max_pool2d_backward", .lower = scatter_to_maxima<2>, .heavy = true},
    {.name = "adaptive_max_pool3d_backward", .lower = scatter_to_maxima<3>, .heavy = true},
    {.name = "max_unpool2d", .lower = max_unpool<2>, .heavy = true},
    {.name = "max_unpool3d", .lower = max_unpool<3>, .heavy = true},
    {.name = "fractional_max_pool2d", .lower = fractional_max_pool<2>, .heavy = true},
    {.name = "fractional_max_pool3d", .lower = fractional_max_pool<3>, .heavy = true},
    {.name = "fractional_max_pool2d_backward", .lower = scatter_to_maxima<2>, .heavy = true},
    {.name = "fractional_max_pool3d_backward", .lower = scatter_to_maxima<3>, .heavy = true},
};

}  // namespace

std::span<const Row> pooling_adaptive_rows() { return kRows; }

}  // namespace tpu::lowering
