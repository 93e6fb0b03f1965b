// Convolutions of any number of spatial dims, plain and transposed, with their gradients.
//
// Everything is one of three correlations. With x [N, C, *S], w [O, C / g, *K] and y [N, O, *T]:
//   correlate       x, w -> y   a plain convolution, or the input gradient of a transposed one
//   spread          y, w -> x   a transposed convolution, or the input gradient of a plain one
//   correlate_taps  x, y -> w   the weight gradient of both (x and y change places for transposed)
// Paddings at the high end follow from the sizes, so strides that leave a remainder and output_padding need
// no cases of their own. Narrow floats accumulate in float32 and round once, after the bias.

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Stride, padding and dilation per spatial dim, and the number of groups.
struct Geometry {
  Dims stride, padding, dilation;
  int64_t groups = 1;
};

/// `list` with one entry per spatial dim: a single entry stands for all.
Dims per_dim(Dims list, size_t count) { return list.size() == count ? list : Dims(count, list.empty() ? 0 : list[0]); }

void require_all(const Dims& values, int64_t least, const char* message) {
  for (int64_t value : values) {
    if (value < least) throw Error(Code::kInvalidArgument, message);
  }
}

Geometry geometry_of(const OpCall& call, size_t stride, size_t groups, size_t spatial) {
  Geometry g{per_dim(call.ints(stride), spatial), per_dim(call.ints(stride + 1), spatial),
             per_dim(call.ints(stride + 2), spatial), call.integer(groups)};
  require_all(g.padding, 0, "negative padding is not supported");
  require_all(g.stride, 1, "non-positive stride is not supported");
  require_all(g.dilation, 1, "dilation should be greater than zero");
  return g;
}

Dims spatial_dims(size_t rank) {
  Dims dims;
  for (size_t i = 2; i < rank; ++i) dims.push_back(static_cast<int64_t>(i));
  return dims;
}

Dims spatial_sizes(const Dims& sizes) { return Dims(sizes.begin() + 2, sizes.end()); }

/// Distance between the first and the last tap of a dim.
int64_t reach(int64_t taps, int64_t dilation) { return (taps - 1) * dilation; }

bool has_no_elements(Value x) { return x.type().numel() == 0; }

Value zeros(Builder& builder, DType dtype, const Dims& sizes) {
  return builder.constant(0.0, TensorType{dtype, sizes});
}

/// y [N, O, *T] of x [N, C, *S] and w [O, C / g, *K], in the accumulation type.
Value correlate(Value x, Value w, const Geometry& g, const Dims& out) {
  const DType dtype = compute_type(x.dtype());
  const size_t rank = x.rank();
  Dims sizes{x.dim(0), w.dim(0)};
  for (int64_t size : out) sizes.push_back(size);
  if (has_no_elements(x) || has_no_elements(w) || product(sizes) == 0) return zeros(x.builder(), dtype, sizes);
  ConvolutionWindow window{.strides = g.stride, .pad_low = g.padding, .rhs_dilation = g.dilation};
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t used = (out[i] - 1) * g.stride[i] + reach(w.dim(i + 2), g.dilation[i]) + 1;
    window.pad_high.push_back(used - x.dim(i + 2) - g.padding[i]);
  }
  const Dims spatial = spatial_dims(rank);
  const ConvolutionDims dims{0, 1, spatial, 0, 1, spatial, 0, 1, spatial};
  return convolution(x, w, dims, window, g.groups, 1, dtype);
}

/// w [O, C / g, *K] as the kernel of the opposite direction: taps reversed, [O / g, C, *K].
Value opposite_kernel(Value w, int64_t groups) {
  const Dims spatial = spatial_dims(w.rank());
  Value kernel = reverse(w, spatial);
  if (groups == 1) return kernel;
  Dims split{groups, w.dim(0) / groups, w.dim(1)}, order{1, 0, 2}, merged{w.dim(0) / groups, groups * w.dim(1)};
  for (int64_t i : spatial) {
    split.push_back(w.dim(static_cast<size_t>(i)));
    merged.push_back(w.dim(static_cast<size_t>(i)));
    order.push_back(i + 1);
  }
  return reshape(transpose(reshape(kernel, split), order), merged);
}

/// x [N, C, *S] of y [N, O, *T] and w [O, C / g, *K], in the accumulation type: every y adds to the entries
/// that correlate would have read for it.
Value spread(Value y, Value w, const Geometry& g, const Dims& out) {
  const DType dtype = compute_type(y.dtype());
  const size_t rank = y.rank();
  Dims sizes{y.dim(0), w.dim(1) * g.groups};
  for (int64_t size : out) sizes.push_back(size);
  if (has_no_elements(y) || has_no_elements(w) || product(sizes) == 0) return zeros(y.builder(), dtype, sizes);
  ConvolutionWindow window{.lhs_dilation = g.stride, .rhs_dilation = g.dilation};
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t span = reach(w.dim(i + 2), g.dilation[i]);
    const int64_t low = span - g.padding[i], dilated = (y.dim(i + 2) - 1) * g.stride[i] + 1;
    window.pad_low.push_back(low);
    window.pad_high.push_back(out[i] + span - dilated - low);
  }
  const Dims spatial = spatial_dims(rank);
  const ConvolutionDims dims{0, 1, spatial, 1, 0, spatial, 0, 1, spatial};
  return convolution(y, opposite_kernel(w, g.groups), dims, window, g.groups, 1, dtype);
}

/// Weight gradient [O, C / g, *K] of x [N, C, *S] and y's gradient [N, O, *T], in the accumulation type: the
/// batch is contracted, y is the kernel and its taps lie `stride` apart.
Value correlate_taps(Value x, Value y, const Geometry& g, const Dims& taps) {
  const DType dtype = compute_type(x.dtype());
  Dims sizes{y.dim(1), x.dim(1) / g.groups};
  for (int64_t size : taps) sizes.push_back(size);
  if (has_no_elements(x) || has_no_elements(y) || product(sizes) == 0) return zeros(x.builder(), dtype, sizes);
  ConvolutionWindow window{.strides = g.dilation, .pad_low = g.padding, .rhs_dilation = g.stride};
  for (size_t i = 0; i < taps.size(); ++i) {
    const int64_t used = reach(taps[i], g.dilation[i]) + (y.dim(i + 2) - 1) * g.stride[i] + 1;
    window.pad_high.push_back(used - x.dim(i + 2) - g.padding[i]);
  }
  const Dims spatial = spatial_dims(x.rank());
  const ConvolutionDims dims{1, 0, spatial, 1, 0, spatial, 1, 0, spatial};
  return convolution(x, y, dims, window, 1, g.groups, dtype);
}

/// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
std::vector<Value> convolution_forward(const OpCall& call) {
  const Value x = call.tensor(0), w = call.tensor(1);
  const TensorType& type = call.result_type();
  const Geometry g = geometry_of(call, 3, 8, x.rank() - 2);
  const Dims out = spatial_sizes(type.dims);
  Value result = call.boolean(6) ? spread(x, w, g, out) : correlate(x, w, g, out);
  if (call.has(2)) {
    const Value bias = call.operand(2, result.dtype());
    result = add(result, broadcast_in_dim(bias, result.dims(), {1}));
  }
  return {convert_like_torch(result, type.dtype)};
}

/// Sum over everything but the channels.
Value bias_gradient(Value grad) {
  Dims axes{0};
  for (int64_t axis : spatial_dims(grad.rank())) axes.push_back(axis);
  return reduce(convert(grad, compute_type(grad.dtype())), Reducer::kAdd, axes);
}

/// Gradients of input, weight and bias; `first` is the position of `stride` in the schema.
std::vector<Value> gradients(const OpCall& call, size_t first) {
  const Value grad = call.tensor(0), x = call.tensor(1), w = call.tensor(2);
  const Geometry g = geometry_of(call, first, first + 5, x.rank() - 2);
  const bool transposed = call.boolean(first + 3);
  const std::vector<bool> wanted = call.booleans(first + 6);
  std::vector<Value> results(3);
  if (wanted[0]) {
    const Dims out = spatial_sizes(x.dims());
    results[0] = transposed ? correlate(grad, w, g, out) : spread(grad, w, g, out);
  }
  if (wanted[1]) {
    const Dims taps = spatial_sizes(w.dims());
    results[1] = transposed ? correlate_taps(grad, x, g, taps) : correlate_taps(x, grad, g, taps);
  }
  if (wanted[2]) results[2] = bias_gradient(grad);
  for (size_t k = 0; k < 3; ++k) {
    if (wanted[k]) results[k] = convert_like_torch(results[k], call.result_type(k).dtype);
  }
  return results;
}

/// grad, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask.
std::vector<Value> convolution_backward_overrideable(const OpCall& call) { return gradients(call, 3); }

/// grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask.
std::vector<Value> convolution_backward(const OpCall& call) { return gradients(call, 4); }

const Row kRows[] = {
    {.name = "convolution", .lower = convolution_forward, .heavy = true},
    {.name = "convolution_backward", .lower = convolution_backward, .heavy = true},
    {.name = "convolution_overrideable", .lower = convolution_forward, .heavy = true},
    {.name = "convolution_backward_overrideable", .lower = convolution_backward_overrideable, .heavy = true},
};

}  // namespace

std::span<const Row> convolution_rows() { return kRows; }

}  // namespace tpu::lowering
