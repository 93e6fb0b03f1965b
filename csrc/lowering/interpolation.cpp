// Resizing: nearest, linear, cubic and antialiased interpolation of 1 to 3 dims, with gradients.
//
// Every kind is separable and linear: along an axis, output o is a weighted sum of a few entries. Which entries
// and which weights depends on sizes alone, so the table is made here, in the arithmetic of PyTorch's kernels,
// and enters the program as short vectors. The gradient is the transposed table. Images of uint8 are resized in
// integers, as PyTorch's CPU kernels do it: the weights are fixed-point numbers, and each axis rounds to uint8.

#include "lowering/interpolation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lowering/helpers.h"
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Sum over t of weight[o][t] * x[index[o][t]] for every output o; rows may differ in length.
struct Table {
  std::vector<std::vector<int64_t>> index;
  std::vector<std::vector<double>> weight;
  size_t longest() const {
    size_t taps = 0;
    for (const auto& row : index) taps = std::max(taps, row.size());
    return taps;
  }
};

/// How one axis is resized. `scale` is the given factor, 0 when it follows from the sizes.
struct Resize {
  int64_t size, out;
  bool align_corners;
  double scale;
};

/// Distance between neighbouring outputs in entries of the input. `real` is the type that the kernel computes in.
template <typename real>
real step_of(const Resize& r) {
  if (r.align_corners) return r.out > 1 ? static_cast<real>(r.size - 1) / static_cast<real>(r.out - 1) : real(0);
  return r.scale > 0 ? static_cast<real>(1.0 / r.scale) : static_cast<real>(r.size) / static_cast<real>(r.out);
}

/// Where output `o` lies on the input's axis.
template <typename real>
real source_of(const Resize& r, real step, int64_t o, bool cubic) {
  if (r.align_corners) return step * static_cast<real>(o);
  const real source = step * (static_cast<real>(o) + real(0.5)) - real(0.5);
  return !cubic && source < 0 ? real(0) : source;
}

// ---- tables

Table nearest_table(const Resize& r, bool exact) {
  Table table;
  const auto step = step_of<float>({r.size, r.out, false, r.scale});
  for (int64_t o = 0; o < r.out; ++o) {
    int64_t at = o;
    if (exact) {
      at = static_cast<int64_t>(std::floor(static_cast<float>((static_cast<double>(o) + 0.5) * step)));
    } else if (r.out == 2 * r.size) {
      at = o >> 1;
    } else if (r.out != r.size) {
      at = static_cast<int64_t>(std::floor(static_cast<float>(o) * step));
    }
    table.index.push_back({std::min(at, r.size - 1)});
    table.weight.push_back({1.0});
  }
  return table;
}

template <typename real>
Table linear_table(const Resize& r) {
  Table table;
  const real step = step_of<real>(r);
  for (int64_t o = 0; o < r.out; ++o) {
    if (r.size == r.out) {
      table.index.push_back({o});
      table.weight.push_back({1.0});
      continue;
    }
    const real source = source_of<real>(r, step, o, false);
    const int64_t low = std::min(static_cast<int64_t>(source), r.size - 1), high = std::min(low + 1, r.size - 1);
    const real part = std::clamp(source - static_cast<real>(low), real(0), real(1));
    table.index.push_back({low, high});
    table.weight.push_back({static_cast<double>(real(1) - part), static_cast<double>(part)});
  }
  return table;
}

/// Weights of the four neighbours of a point `t` past the second of them.
template <typename real>
std::vector<double> cubic_weights(real t) {
  const auto a = real(-0.75);
  const auto near = [a](real x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [a](real x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  const real u = 1 - t;
  return {static_cast<double>(far(t + 1)), static_cast<double>(near(t)), static_cast<double>(near(u)),
          static_cast<double>(far(u + 1))};
}

template <typename real>
Table cubic_table(const Resize& r) {
  Table table;
  const real step = step_of<real>(r);
  for (int64_t o = 0; o < r.out; ++o) {
    const real source = source_of<real>(r, step, o, true);
    const int64_t base = std::min(static_cast<int64_t>(std::floor(source)), r.size - 1);
    const real part = std::clamp(source - static_cast<real>(base), real(0), real(1));
    std::vector<int64_t> entries;
    for (int64_t k = -1; k <= 2; ++k) entries.push_back(std::clamp<int64_t>(base + k, 0, r.size - 1));
    table.index.push_back(entries);
    table.weight.push_back(cubic_weights(part));
  }
  return table;
}

enum class Filter { kLinear, kCubic, kLanczos };

double filter_width(Filter filter) { return filter == Filter::kLinear ? 2 : filter == Filter::kCubic ? 4 : 6; }

template <typename real>
real filter_value(Filter filter, real x) {
  x = std::abs(x);
  if (filter == Filter::kLinear) return x < 1 ? 1 - x : real(0);
  if (filter == Filter::kCubic) {
    const auto a = real(-0.5);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : real(0);
  }
  const auto sinc = [](real y) {
    return y == 0 ? real(1) : std::sin(real(std::numbers::pi) * y) / (real(std::numbers::pi) * y);
  };
  return x < 3 ? sinc(x) * sinc(x / 3) : real(0);
}

template <typename real>
Table antialias_table(const Resize& r, Filter filter) {
  Table table;
  const real step = step_of<real>(r);
  const real half = static_cast<real>(filter_width(filter) * 0.5), support = step >= 1 ? half * step : half;
  const real inverse = step >= 1 ? 1 / step : real(1);
  for (int64_t o = 0; o < r.out; ++o) {
    const real center = step * (static_cast<real>(o) + real(0.5));
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + real(0.5)), 0);
    const int64_t end = std::min(static_cast<int64_t>(center + support + real(0.5)), r.size);
    std::vector<int64_t> entries;
    std::vector<real> weights;
    real total = 0;
    for (int64_t i = first; i < end; ++i) {
      const real w = filter_value<real>(filter, (static_cast<real>(i) - center + real(0.5)) * inverse);
      entries.push_back(i);
      weights.push_back(w);
      total += w;
    }
    table.index.push_back(entries);
    table.weight.emplace_back();
    for (real w : weights) table.weight.back().push_back(static_cast<double>(total != 0 ? w / total : w));
  }
  return table;
}

enum class Kind { kNearest, kNearestExact, kLinear, kCubic, kLinearAntialias, kCubicAntialias, kLanczosAntialias };

template <typename real>
Table table_in(Kind kind, const Resize& r) {
  switch (kind) {
    case Kind::kNearest:
      return nearest_table(r, false);
    case Kind::kNearestExact:
      return nearest_table(r, true);
    case Kind::kLinear:
      return linear_table<real>(r);
    case Kind::kCubic:
      return cubic_table<real>(r);
    case Kind::kLinearAntialias:
      return antialias_table<real>(r, Filter::kLinear);
    case Kind::kCubicAntialias:
      return antialias_table<real>(r, Filter::kCubic);
    case Kind::kLanczosAntialias:
      return antialias_table<real>(r, Filter::kLanczos);
  }
  throw Error(Code::kInternal, "interpolation: unknown kind");
}

Table table_for(Kind kind, const Resize& r, DType compute) {
  return compute == DType::kF64 ? table_in<double>(kind, r) : table_in<float>(kind, r);
}

/// Which outputs read each of `size` entries, with their weights: the table of the gradient.
Table transposed(const Table& table, int64_t size) {
  Table result;
  result.index.resize(static_cast<size_t>(size));
  result.weight.resize(static_cast<size_t>(size));
  for (size_t o = 0; o < table.index.size(); ++o) {
    for (size_t t = 0; t < table.index[o].size(); ++t) {
      const auto entry = static_cast<size_t>(table.index[o][t]);
      auto& outputs = result.index[entry];
      if (!outputs.empty() && outputs.back() == static_cast<int64_t>(o)) {
        result.weight[entry].back() += table.weight[o][t];  // a clamped neighbour counts twice
      } else {
        outputs.push_back(static_cast<int64_t>(o));
        result.weight[entry].push_back(table.weight[o][t]);
      }
    }
  }
  return result;
}

// ---- application

/// Up to this many taps are picked and added one by one; more are gathered into a dim and reduced.
constexpr size_t kUnrolledTaps = 8;

/// Entries `index` of an axis.
Value pick(Value x, size_t axis, std::span<const int64_t> index) {
  const auto count = static_cast<int64_t>(index.size());
  bool in_order = count == x.dim(axis);
  for (int64_t i = 0; i < count && in_order; ++i) in_order = index[static_cast<size_t>(i)] == i;
  if (in_order) return x;
  return take_slices(x, x.builder().constant(index, TensorType{DType::kS32, {count}}), static_cast<int64_t>(axis));
}

/// Every entry repeated a whole number of times: the table of most nearest-neighbour enlargements. 0 otherwise.
int64_t repeats(const Table& table, int64_t size) {
  const auto out = static_cast<int64_t>(table.index.size());
  if (size == 0 || out % size != 0) return 0;
  const int64_t times = out / size;
  for (int64_t o = 0; o < out; ++o) {
    const auto row = static_cast<size_t>(o);
    if (table.index[row] != std::vector<int64_t>{o / times} || table.weight[row][0] != 1.0) return 0;
  }
  return times;
}

Value repeated(Value x, size_t axis, int64_t times) {
  Dims split = x.dims(), merged = x.dims(), axes;
  split.insert(axis + 1, times);
  merged[axis] *= times;
  for (size_t i = 0; i < x.rank(); ++i) axes.push_back(static_cast<int64_t>(i <= axis ? i : i + 1));
  return reshape(broadcast_in_dim(x, split, axes), merged);
}

/// The opposite: each group of `times` neighbours summed.
Value summed_groups(Value x, size_t axis, int64_t times) {
  Dims split = x.dims();
  split[axis] /= times;
  split.insert(axis + 1, times);
  return reduce(reshape(x, split), Reducer::kAdd, {static_cast<int64_t>(axis) + 1});
}

/// Tap `t` of every row: entry and weight, 0 where the row is shorter.
std::pair<std::vector<int64_t>, std::vector<double>> column(const Table& table, size_t t) {
  std::pair<std::vector<int64_t>, std::vector<double>> result;
  for (size_t o = 0; o < table.index.size(); ++o) {
    const bool there = t < table.index[o].size();
    // A missing tap reads an entry of its own row, so that no foreign infinity meets its weight of 0.
    result.first.push_back(there ? table.index[o][t] : table.index[o].empty() ? 0 : table.index[o].back());
    result.second.push_back(there ? table.weight[o][t] : 0.0);
  }
  return result;
}

Value weights_of(Builder& builder, std::span<const double> weights, const TensorType& type) {
  if (is_floating(type.dtype)) return builder.constant(weights, type);
  return builder.constant(std::vector<int64_t>(weights.begin(), weights.end()), type);
}

Value weights_along(Value like, size_t axis, std::span<const double> weights) {
  const TensorType type{like.dtype(), {static_cast<int64_t>(weights.size())}};
  return broadcast_in_dim(weights_of(like.builder(), weights, type), like.dims(), {static_cast<int64_t>(axis)});
}

Value apply_unrolled(Value x, size_t axis, const Table& table) {
  Value sum;
  for (size_t t = 0; t < table.longest(); ++t) {
    const auto [index, weight] = column(table, t);
    Value part = pick(x, axis, index);
    const bool plain = std::all_of(weight.begin(), weight.end(), [](double w) { return w == 1.0; });
    if (!plain) part = multiply(part, weights_along(part, axis, weight));
    sum = sum.defined() ? add(sum, part) : part;
  }
  return sum;
}

Value apply_gathered(Value x, size_t axis, const Table& table) {
  const size_t taps = table.longest(), out = table.index.size();
  std::vector<int64_t> index(out * taps);
  std::vector<double> weight(out * taps);
  for (size_t t = 0; t < taps; ++t) {
    const auto [entries, weights] = column(table, t);
    for (size_t o = 0; o < out; ++o) {
      index[o * taps + t] = entries[o];
      weight[o * taps + t] = weights[o];
    }
  }
  Dims split = x.dims();
  split[axis] = static_cast<int64_t>(out);
  split.insert(axis + 1, static_cast<int64_t>(taps));
  const Value parts = reshape(pick(x, axis, index), split);
  const TensorType type{x.dtype(), {static_cast<int64_t>(out), static_cast<int64_t>(taps)}};
  const auto first = static_cast<int64_t>(axis);
  const Value scale = broadcast_in_dim(weights_of(x.builder(), weight, type), split, {first, first + 1});
  return reduce(multiply(parts, scale), Reducer::kAdd, {first + 1});
}

Value apply(Value x, size_t axis, const Table& table) {
  return table.longest() <= kUnrolledTaps ? apply_unrolled(x, axis, table) : apply_gathered(x, axis, table);
}

// ---- images of bytes

/// The table with one weight for each entry of a row: what clamping sent to the same entry is added up.
Table merged(Table table) {
  for (size_t o = 0; o < table.index.size(); ++o) {
    std::vector<int64_t> entries;
    std::vector<double> weights;
    for (size_t t = 0; t < table.index[o].size(); ++t) {
      if (entries.empty() || entries.back() != table.index[o][t]) {
        entries.push_back(table.index[o][t]);
        weights.push_back(0);
      }
      weights.back() += table.weight[o][t];
    }
    table.index[o] = entries;
    table.weight[o] = weights;
  }
  return table;
}

/// Makes the weights whole numbers of units of 2^-bits, which is returned: the most bits, up to 22, with which the
/// largest weight fits 16 bits with a sign.
int to_fixed_point(Table& table) {
  double largest = 0;
  for (const auto& row : table.weight) {
    for (double w : row) largest = std::max(largest, w);
  }
  int bits = 0;
  while (bits < 22 && static_cast<int64_t>(0.5 + largest * static_cast<double>(2 << bits)) < (1 << 15)) ++bits;
  for (auto& row : table.weight) {
    for (double& w : row) w = std::round(w * static_cast<double>(1 << bits));
  }
  return bits;
}

/// Images of bytes, as int32, along one axis.
Value resized_bytes(Value x, size_t axis, Table table) {
  table = merged(std::move(table));
  const int bits = to_fixed_point(table);
  Value sum = apply(x, axis, table);
  sum = stablehlo::add(sum, full_like(sum, static_cast<double>(1 << (bits - 1))));
  sum = shift_right_arithmetic(sum, full_like(sum, bits));
  return clamp(scalar(x.builder(), int64_t{0}, DType::kS32), sum, scalar(x.builder(), int64_t{255}, DType::kS32));
}

bool has_align_corners(Kind kind) { return kind != Kind::kNearest && kind != Kind::kNearestExact; }

/// The resizing of trailing axis `i`. `first` is the position after the sizes in the schema: align_corners where
/// the kind has it, then one optional scale per axis.
Resize resize_of(const OpCall& call, Kind kind, size_t first, size_t i, int64_t size, int64_t out) {
  const bool flag = has_align_corners(kind);
  const size_t scale = first + (flag ? 1 : 0) + i;
  return {size, out, flag && call.boolean(first), call.real_or(scale, 0)};
}

/// A batch of images of uint8: rows first, then columns. The weights are made in double and then rounded.
Value upsampled_bytes(const OpCall& call, Kind kind) {
  Value x = convert(call.tensor(0), DType::kS32);
  for (size_t axis = 4; axis-- > 2;) {
    const Resize r = resize_of(call, kind, 2, axis - 2, x.dim(axis), call.result_type().dims[axis]);
    x = resized_bytes(x, axis, table_for(kind, r, DType::kF64));
  }
  return convert(x, DType::kU8);
}

/// self, output_size, [align_corners], scales.
template <Kind kind>
std::vector<Value> upsample(const OpCall& call) {
  const Value input = call.tensor(0);
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const bool copies = !has_align_corners(kind);
  const DType dtype = copies ? type.dtype : compute_type(type.dtype);
  if (type.dtype == DType::kU8 && !copies && input.rank() == 4) return {upsampled_bytes(call, kind)};
  if (!copies && !is_floating(dtype)) {
    throw Error(Code::kNotImplemented, std::string(call.name()) + ": integer images are only resized by nearest");
  }
  Value x = convert(input, dtype);
  for (size_t axis = 2; axis < x.rank(); ++axis) {
    const Resize r = resize_of(call, kind, 2, axis - 2, x.dim(axis), type.dims[axis]);
    const Table table = table_for(kind, r, dtype);
    const int64_t times = repeats(table, r.size);
    x = times > 0 ? repeated(x, axis, times) : apply(x, axis, table);
  }
  return {convert(x, type.dtype)};
}

/// grad, output_size, input_size, [align_corners], scales.
template <Kind kind>
std::vector<Value> upsample_backward(const OpCall& call) {
  const Value grad = call.tensor(0);
  const TensorType& type = call.result_type();
  if (type.numel() == 0 || grad.type().numel() == 0) return {call.builder().constant(0.0, type)};
  const DType dtype = compute_type(type.dtype);
  Value x = convert(grad, dtype);
  for (size_t axis = x.rank(); axis-- > 2;) {
    const Resize r = resize_of(call, kind, 3, axis - 2, type.dims[axis], x.dim(axis));
    const Table table = table_for(kind, r, dtype);
    const int64_t times = repeats(table, r.size);
    x = times > 0 ? summed_groups(x, axis, times) : apply(x, axis, transposed(table, r.size));
  }
  return {convert(x, type.dtype)};
}

/// Bits of the scales, which select the table: `count` of them from argument `first`.
constexpr uint32_t scales(uint32_t first, uint32_t count) { return ((1u << count) - 1) << first; }

template <Kind kind>
constexpr Row forward_row(std::string_view name, uint32_t spatial, uint32_t first) {
  return {.name = name, .lower = upsample<kind>, .static_args = scales(first, spatial), .heavy = true};
}

template <Kind kind>
constexpr Row backward_row(std::string_view name, uint32_t spatial, uint32_t first) {
  return {.name = name, .lower = upsample_backward<kind>, .static_args = scales(first, spatial), .heavy = true};
}

const Row kRows[] = {
    forward_row<Kind::kNearest>("upsample_nearest1d", 1, 2),
    forward_row<Kind::kNearest>("upsample_nearest2d", 2, 2),
    forward_row<Kind::kNearest>("upsample_nearest3d", 3, 2),
    forward_row<Kind::kNearestExact>("_upsample_nearest_exact1d", 1, 2),
    forward_row<Kind::kNearestExact>("_upsample_nearest_exact2d", 2, 2),
    forward_row<Kind::kNearestExact>("_upsample_nearest_exact3d", 3, 2),
    forward_row<Kind::kLinear>("upsample_linear1d", 1, 3),
    forward_row<Kind::kLinear>("upsample_bilinear2d", 2, 3),
    forward_row<Kind::kLinear>("upsample_trilinear3d", 3, 3),
    forward_row<Kind::kCubic>("upsample_bicubic2d", 2, 3),
    forward_row<Kind::kLinearAntialias>("_upsample_bilinear2d_aa", 2, 3),
    forward_row<Kind::kCubicAntialias>("_upsample_bicubic2d_aa", 2, 3),
    forward_row<Kind::kLanczosAntialias>("_upsample_lanczos2d_aa", 2, 3),
    backward_row<Kind::kNearest>("upsample_nearest1d_backward", 1, 3),
    backward_row<Kind::kNearest>("upsample_nearest2d_backward", 2, 3),
    backward_row<Kind::kNearest>("upsample_nearest3d_backward", 3, 3),
    backward_row<Kind::kNearestExact>("_upsample_nearest_exact1d_backward", 1, 3),
    backward_row<Kind::kNearestExact>("_upsample_nearest_exact2d_backward", 2, 3),
    backward_row<Kind::kNearestExact>("_upsample_nearest_exact3d_backward", 3, 3),
    backward_row<Kind::kLinear>("upsample_linear1d_backward", 1, 4),
    backward_row<Kind::kLinear>("upsample_bilinear2d_backward", 2, 4),
    backward_row<Kind::kLinear>("upsample_trilinear3d_backward", 3, 4),
    backward_row<Kind::kCubic>("upsample_bicubic2d_backward", 2, 4),
    backward_row<Kind::kLinearAntialias>("_upsample_bilinear2d_aa_backward", 2, 4),
    backward_row<Kind::kCubicAntialias>("_upsample_bicubic2d_aa_backward", 2, 4),
    backward_row<Kind::kLanczosAntialias>("_upsample_lanczos2d_aa_backward", 2, 4),
};

}  // namespace

std::span<const Row> interpolation_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    for (const Row& row : grid_sampler_rows()) all.push_back(row);
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
