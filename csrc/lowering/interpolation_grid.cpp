// grid_sampler_2d and grid_sampler_3d: the value of an image at the coordinates that a grid gives, with the
// gradients of image and grid.
//
// A sample is a sum over taps: the corners around the point (1 for nearest, 2 per axis for linear, 4 for
// cubic). A tap has one entry and one weight per axis; its weight in the sum is their product. Coordinates
// and weights are computed in the compute type, as the CPU kernels do, and rounded once at the end.

#include <cmath>

#include "lowering/helpers.h"
#include "lowering/interpolation.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

enum class Mode { kLinear = 0, kNearest = 1, kCubic = 2 };
enum class Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

Value like(Value x, double value) { return full_like(x, value); }
Value less(Value a, Value b) { return compare(a, b, Compare::kLt); }

/// A coordinate in entries and its derivative by the grid's value (undefined: not wanted).
struct Coordinate {
  Value at;
  Value slope;
};

/// From [-1, 1] to entries of an axis of `size`.
Coordinate unnormalized(Value grid, int64_t size, bool align_corners) {
  const auto n = static_cast<double>(size);
  const Value shifted = add(grid, like(grid, 1));
  if (align_corners) {
    const double slope = (n - 1) / 2;
    return {multiply(multiply(shifted, like(grid, 0.5)), like(grid, n - 1)), like(grid, slope)};
  }
  const Value at = multiply(subtract(multiply(shifted, like(grid, n)), like(grid, 1)), like(grid, 0.5));
  return {at, like(grid, n / 2)};
}

/// Clipped to the axis; no gradient at or past its ends.
Coordinate clipped(const Coordinate& c, int64_t size) {
  const Value zero = like(c.at, 0), last = like(c.at, static_cast<double>(size - 1));
  const Value inside = bit_and(less(zero, c.at), less(c.at, last));
  return {minimum(maximum(c.at, zero), last), select(inside, c.slope, zero)};
}

/// Mirrored at low / 2 and high / 2 until it lies between them.
Coordinate reflected(const Coordinate& c, int64_t twice_low, int64_t twice_high) {
  const Value zero = like(c.at, 0);
  if (twice_low == twice_high) return {zero, zero};
  const double low = static_cast<double>(twice_low) / 2, span = static_cast<double>(twice_high - twice_low) / 2;
  const Value from_low = subtract(c.at, like(c.at, low));
  const Value negative = less(from_low, zero);
  const Value distance = abs(from_low), width = like(c.at, span);
  const Value extra = remainder(distance, width);
  const Value flips = floor(stablehlo::divide(distance, width));
  const Value odd = compare(remainder(flips, like(c.at, 2)), zero, Compare::kNe);
  const Value at = select(odd, add(subtract(width, extra), like(c.at, low)), add(extra, like(c.at, low)));
  const Value turned = convert(bit_xor(odd, negative), DType::kBool);
  return {at, select(turned, negate(c.slope), c.slope)};
}

Coordinate padded(const Coordinate& c, int64_t size, Padding padding, bool align_corners) {
  switch (padding) {
    case Padding::kZeros:
      return c;
    case Padding::kBorder:
      return clipped(c, size);
    case Padding::kReflection:
      return clipped(align_corners ? reflected(c, 0, 2 * (size - 1)) : reflected(c, -1, 2 * size - 1), size);
  }
  throw Error(Code::kInvalidArgument, "grid_sampler: unknown padding mode");
}

/// One tap along one axis: entry (float, maybe outside), weight, and the weight's derivative by the grid.
struct AxisTap {
  Value entry;
  Value weight;
  Value slope;
};

std::vector<AxisTap> linear_taps(const Coordinate& c) {
  const Value low = floor(c.at), high = add(low, like(low, 1));
  return {{low, subtract(high, c.at), negate(c.slope)}, {high, subtract(c.at, low), c.slope}};
}

/// Cubic convolution weights of the four neighbours and their derivatives by t.
std::vector<AxisTap> cubic_taps(const Coordinate& c, int64_t size, Padding padding, bool align_corners) {
  constexpr double a = -0.75;
  const Value base = floor(c.at), t = subtract(c.at, base);
  const auto polynomial = [](Value x, double c3, double c2, double c1, double c0) {
    Value sum = add(multiply(x, like(x, c3)), like(x, c2));
    sum = add(multiply(sum, x), like(x, c1));
    return add(multiply(sum, x), like(x, c0));
  };
  std::vector<AxisTap> taps;
  for (int k = -1; k <= 2; ++k) {
    // Distance from the point: t + 1, t, 1 - t, 2 - t.
    const Value distance = k <= 0 ? add(t, like(t, -k)) : subtract(like(t, k), t);
    const bool near = k == 0 || k == 1;
    const Value weight =
        near ? polynomial(distance, a + 2, -(a + 3), 0, 1) : polynomial(distance, a, -5 * a, 8 * a, -4 * a);
    const Value by_distance =
        near ? polynomial(distance, 0, 3 * (a + 2), -2 * (a + 3), 0) : polynomial(distance, 0, 3 * a, -10 * a, 8 * a);
    const Value by_t = k <= 0 ? by_distance : negate(by_distance);
    const Coordinate entry = padded({add(base, like(base, k)), c.slope}, size, padding, align_corners);
    taps.push_back({entry.at, weight, multiply(by_t, c.slope)});
  }
  return taps;
}

/// One call: grid coordinates [N, *T] per axis of the image (slowest first), and how they are read.
struct Sampling {
  Mode mode;
  Padding padding;
  bool align_corners;
  std::vector<std::vector<AxisTap>> taps;  // per image axis
};

Sampling sampling_of(Value grid, const Dims& image, Mode mode, Padding padding, bool align_corners) {
  Sampling s{mode, padding, align_corners, {}};
  const size_t spatial = image.size() - 2, last = grid.rank() - 1;
  for (size_t axis = 0; axis < spatial; ++axis) {
    // The grid holds x first: its last entry belongs to the slowest axis.
    const auto k = static_cast<int64_t>(spatial - 1 - axis);
    Dims start(grid.rank(), 0), limit = grid.dims(), sizes = grid.dims();
    start[last] = k;
    limit[last] = k + 1;
    sizes.pop_back();
    const Value raw = reshape(slice(grid, start, limit, Dims(grid.rank(), 1)), sizes);
    const int64_t size = image[axis + 2];
    const Coordinate c = unnormalized(raw, size, align_corners);
    if (mode == Mode::kCubic) {
      s.taps.push_back(cubic_taps(c, size, padding, align_corners));
      continue;
    }
    const Coordinate within = padded(c, size, padding, align_corners);
    if (mode == Mode::kLinear) {
      s.taps.push_back(linear_taps(within));
    } else {
      const Value nearest = round_nearest_even(within.at);
      s.taps.push_back({{nearest, like(nearest, 1), like(nearest, 0)}});
    }
  }
  return s;
}

/// A corner of the sample: one tap of every axis.
struct Corner {
  std::vector<const AxisTap*> taps;
  Value inside;    // i1[N, *T]
  Value position;  // s32[N, *T], row-major within the plane; 0 where outside
};

/// Calls `visit` for every combination of taps.
template <typename Visit>
void for_each_corner(const Sampling& s, const Dims& image, const Visit& visit) {
  const size_t spatial = s.taps.size();
  size_t combinations = 1;
  for (const auto& taps : s.taps) combinations *= taps.size();
  for (size_t flat = 0; flat < combinations; ++flat) {
    Corner corner;
    size_t rest = flat;
    for (size_t axis = 0; axis < spatial; ++axis) {
      const AxisTap& tap = s.taps[axis][rest % s.taps[axis].size()];
      rest /= s.taps[axis].size();
      const Value size = like(tap.entry, static_cast<double>(image[axis + 2]));
      const Value within = bit_and(compare(tap.entry, like(tap.entry, 0), Compare::kGe), less(tap.entry, size));
      // Converted only where it lies inside: integers of far or NaN coordinates mean nothing.
      const Value entry = convert(select(within, tap.entry, like(tap.entry, 0)), DType::kS32);
      corner.inside = corner.inside.defined() ? bit_and(corner.inside, within) : within;
      corner.position =
          corner.position.defined()
              ? add(multiply(corner.position, full_like(entry, static_cast<double>(image[axis + 2]))), entry)
              : entry;
      corner.taps.push_back(&tap);
    }
    visit(corner);
  }
}

Value product_of_weights(const Corner& corner, size_t except = SIZE_MAX) {
  Value product;
  for (size_t axis = 0; axis < corner.taps.size(); ++axis) {
    const Value factor = axis == except ? corner.taps[axis]->slope : corner.taps[axis]->weight;
    product = product.defined() ? multiply(product, factor) : factor;
  }
  return product;
}

/// [N, *T] repeated over the channels: [N, C, *T].
Value over_channels(Value x, const Dims& sizes) {
  Dims axes{0};
  for (size_t i = 2; i < sizes.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  return broadcast_in_dim(x, sizes, axes);
}

/// [image number, position] pairs of a corner, [N, T, 2].
Value pairs_of(const Corner& corner) {
  const Value position = corner.position;
  const int64_t n = position.dim(0), count = n == 0 ? 0 : position.type().numel() / n;
  const Dims column{n, count, 1};
  const Value parts[] = {stablehlo::iota(position.builder(), {DType::kS32, column}, 0), reshape(position, column)};
  return concatenate(parts, 2);
}

/// Entries of x [N, C, S] at a corner as [N, C, *T], 0 outside.
Value entries_at(Value x, const Corner& corner, const Dims& sizes) {
  GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = {0, 2};
  dims.start_index_map = {0, 2};
  dims.index_vector_dim = 2;
  const Value picked = reshape(gather(x, pairs_of(corner), dims, {1, x.dim(1), 1}), sizes);
  return select(over_channels(corner.inside, sizes), picked, full_like(picked, 0));
}

/// Spatial dims merged: [N, C, S].
Value flat_planes(Value x) {
  int64_t plane = 1;
  for (size_t i = 2; i < x.rank(); ++i) plane *= x.dim(i);
  return reshape(x, {x.dim(0), x.dim(1), plane});
}

Sampling sampling_of(const OpCall& call, Value image, Value grid, size_t first) {
  return sampling_of(convert(grid, compute_type(image.dtype())), image.dims(), static_cast<Mode>(call.integer(first)),
                     static_cast<Padding>(call.integer(first + 1)), call.boolean(first + 2));
}

/// input, grid, interpolation_mode, padding_mode, align_corners.
std::vector<Value> grid_sampler(const OpCall& call) {
  const Value image = call.tensor(0), grid = call.tensor(1);
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const Sampling s = sampling_of(call, image, grid, 2);
  const Value x = flat_planes(convert(image, compute_type(image.dtype())));
  Value sum;
  for_each_corner(s, image.dims(), [&](const Corner& corner) {
    Value part = entries_at(x, corner, type.dims);
    if (s.mode != Mode::kNearest) part = multiply(part, over_channels(product_of_weights(corner), type.dims));
    sum = sum.defined() ? add(sum, part) : part;
  });
  return {convert(sum, type.dtype)};
}

/// Image gradient: every corner adds its share, one scatter per corner.
Value image_gradient(const Sampling& s, Value grad, const Dims& image) {
  const Dims sizes = grad.dims();
  const int64_t plane = product(Dims(image.begin() + 2, image.end()));
  Value sum = grad.builder().constant(0.0, TensorType{grad.dtype(), {image[0], image[1], plane}});
  ScatterDims dims;
  dims.update_window_dims = {1};
  dims.inserted_window_dims = {0, 2};
  dims.scatter_dims_to_operand_dims = {0, 2};
  dims.index_vector_dim = 2;
  for_each_corner(s, image, [&](const Corner& corner) {
    const Value weight = select(corner.inside, product_of_weights(corner), full_like(corner.taps[0]->weight, 0));
    // Where the corner lies outside, the weight alone would let an infinite gradient through as NaN.
    const Value share =
        select(over_channels(corner.inside, sizes), multiply(grad, over_channels(weight, sizes)), full_like(grad, 0));
    sum = scatter(sum, pairs_of(corner), flat_planes(share), dims,
                  [](std::span<const Value> v) { return std::vector<Value>{add(v[0], v[1])}; });
  });
  return reshape(sum, image);
}

/// Grid gradient [N, *T, spatial]: the sum over channels of grad times the entries, by each weight's slope.
Value grid_gradient(const Sampling& s, Value image, Value grad, const Dims& grid) {
  const Value x = flat_planes(image);
  const size_t spatial = s.taps.size();
  std::vector<Value> sums(spatial);
  for_each_corner(s, image.dims(), [&](const Corner& corner) {
    const Value picked = multiply(entries_at(x, corner, grad.dims()), grad);
    const Value over = reduce(picked, Reducer::kAdd, {1});
    for (size_t axis = 0; axis < spatial; ++axis) {
      const Value part = multiply(over, product_of_weights(corner, axis));
      sums[axis] = sums[axis].defined() ? add(sums[axis], part) : part;
    }
  });
  Dims column = grid;
  column.back() = 1;
  std::vector<Value> parts;
  for (size_t axis = spatial; axis-- > 0;) parts.push_back(reshape(sums[axis], column));
  return concatenate(parts, static_cast<int64_t>(grid.size()) - 1);
}

/// grad, input, grid, interpolation_mode, padding_mode, align_corners, output_mask.
std::vector<Value> grid_sampler_backward(const OpCall& call) {
  const Value image = call.tensor(1), grid = call.tensor(2);
  const DType dtype = compute_type(image.dtype());
  const Value grad = convert(call.tensor(0), dtype);
  const std::vector<bool> wanted = call.booleans(6);
  const bool empty = grad.type().numel() == 0 || image.type().numel() == 0;
  const Mode mode = static_cast<Mode>(call.integer(3));
  std::vector<Value> results(2);
  if (empty) {
    for (size_t k = 0; k < 2; ++k) {
      if (wanted[k] || k == 1) results[k] = call.builder().constant(0.0, call.result_type(k));
    }
    return results;
  }
  const Sampling s = sampling_of(call, image, grid, 3);
  if (wanted[0]) results[0] = convert(image_gradient(s, grad, image.dims()), call.result_type(0).dtype);
  // Nearest does not depend on small changes of the grid. PyTorch's kernels announce the grid's gradient even when
  // nobody wants it.
  results[1] = mode == Mode::kNearest || !wanted[1]
                   ? call.builder().constant(0.0, call.result_type(1))
                   : convert(grid_gradient(s, convert(image, dtype), grad, grid.dims()), call.result_type(1).dtype);
  return results;
}

const Row kRows[] = {
    {.name = "grid_sampler_2d", .lower = grid_sampler, .heavy = true},
    {.name = "grid_sampler_3d", .lower = grid_sampler, .heavy = true},
    {.name = "grid_sampler_2d_backward", .lower = grid_sampler_backward, .heavy = true},
    {.name = "grid_sampler_3d_backward", .lower = grid_sampler_backward, .heavy = true},
};

}  // namespace

std::span<const Row> grid_sampler_rows() { return kRows; }

}  // namespace tpu::lowering
