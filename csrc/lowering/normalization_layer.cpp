// Layer, RMS, group and weight norm with their gradients. Statistics are taken in two passes (mean, then
// mean of squared differences) in the compute type, as PyTorch's Welford loops do: E[x^2] - E[x]^2 cancels.

#include <limits>

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"

namespace tpu::lowering {

namespace {

using Results = std::vector<Value>;

struct Moments {
  Value centered;  // x - mean
  Value mean;      // kept
  Value rstd;      // kept
};

Moments moments(Value x, const Dims& axes, Value eps) {
  Value mean = mean_over(x, axes, true);
  Value centered = subtract(x, expand_kept(mean, x.dims()));
  Value variance = mean_over(multiply(centered, centered), axes, true);
  return {centered, mean, rsqrt(add(variance, broadcast_to(eps, variance.dims())))};
}

/// The last `count` axes of a value of rank `rank`.
Dims trailing_axes(size_t rank, size_t count) {
  Dims axes;
  for (size_t axis = rank - count; axis < rank; ++axis) axes.push_back(static_cast<int64_t>(axis));
  return axes;
}

Dims leading_axes(size_t count) { return iota(count); }

/// Gradient of the normalised input: rstd * (g - mean(g) - xhat * mean(g * xhat)), the means over `axes`.
/// `center` is false for RMS norm, whose statistics have no mean.
Value normalized_input_grad(Value g, Value xhat, Value rstd, const Dims& axes, bool center) {
  Value projection = expand_kept(mean_over(multiply(g, xhat), axes, true), g.dims());
  Value inner = subtract(g, multiply(xhat, projection));
  if (center) inner = subtract(inner, expand_kept(mean_over(g, axes, true), g.dims()));
  return multiply(inner, expand_kept(rstd, g.dims()));
}

/// (input, normalized_shape, weight?, bias?, eps) -> (output, mean, rstd)
Results native_layer_norm(const OpCall& call) {
  Value input = call.tensor(0);
  DType dtype = compute_type(input.dtype());
  Value x = convert(input, dtype);
  Dims axes = trailing_axes(x.rank(), call.ints(1).size());
  Moments m = moments(x, axes, call.operand(4, dtype));
  Value y = multiply(m.centered, expand_kept(m.rstd, x.dims()));
  if (call.has(2)) y = multiply(y, broadcast_to(call.operand(2, dtype), x.dims()));
  if (call.has(3)) y = add(y, broadcast_to(call.operand(3, dtype), x.dims()));
  return {convert(y, call.result_type(0).dtype), convert(m.mean, call.result_type(1).dtype),
          convert(m.rstd, call.result_type(2).dtype)};
}

/// (grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
Results native_layer_norm_backward(const OpCall& call) {
  DType dtype = compute_type(call.dtype(1));
  Value grad = call.operand(0, dtype), x = call.operand(1, dtype);
  Value rstd = call.operand(4, dtype);
  size_t normalized = call.ints(2).size();
  Dims axes = trailing_axes(x.rank(), normalized), outer = leading_axes(x.rank() - normalized);
  std::vector<bool> wanted = call.booleans(7);
  Value xhat = multiply(subtract(x, expand_kept(call.operand(3, dtype), x.dims())), expand_kept(rstd, x.dims()));
  Results results(3);
  if (wanted[0]) {
    Value g = call.has(5) ? multiply(grad, broadcast_to(call.operand(5, dtype), x.dims())) : grad;
    results[0] = convert(normalized_input_grad(g, xhat, rstd, axes, true), call.result_type(0).dtype);
  }
  if (wanted[1] && call.has(5))
    results[1] = convert(sum_over(multiply(grad, xhat), outer, false), call.result_type(1).dtype);
  if (wanted[2] && call.has(6)) results[2] = convert(sum_over(grad, outer, false), call.result_type(2).dtype);
  return results;
}

/// (input, normalized_shape, weight?, eps?) -> (output, rstd); eps defaults to the compute type's epsilon.
Results fused_rms_norm(const OpCall& call) {
  Value input = call.tensor(0);
  DType dtype = compute_type(input.dtype());
  Value x = convert(input, dtype);
  Dims axes = trailing_axes(x.rank(), call.ints(1).size());
  double fallback =
      dtype == DType::kF64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  Value eps = call.is_none(3) ? scalar(call.builder(), fallback, dtype) : call.operand(3, dtype);
  Value square = mean_over(multiply(x, x), axes, true);
  Value rstd = rsqrt(add(square, broadcast_to(eps, square.dims())));
  Value y = multiply(x, expand_kept(rstd, x.dims()));
  if (call.has(2)) y = multiply(y, broadcast_to(call.operand(2, dtype), x.dims()));
  return {convert(y, call.result_type(0).dtype), convert(rstd, call.result_type(1).dtype)};
}

/// (grad_out, input, normalized_shape, rstd, weight?, output_mask[2])
Results fused_rms_norm_backward(const OpCall& call) {
  DType dtype = compute_type(call.dtype(1));
  Value grad = call.operand(0, dtype), x = call.operand(1, dtype), rstd = call.operand(3, dtype);
  size_t normalized = call.ints(2).size();
  Dims axes = trailing_axes(x.rank(), normalized);
  std::vector<bool> wanted = call.booleans(5);
  Value xhat = multiply(x, expand_kept(rstd, x.dims()));
  Results results(2);
  if (wanted[0]) {
    Value g = call.has(4) ? multiply(grad, broadcast_to(call.operand(4, dtype), x.dims())) : grad;
    results[0] = convert(normalized_input_grad(g, xhat, rstd, axes, false), call.result_type(0).dtype);
  }
  if (wanted[1] && call.has(4)) {
    Value sum = sum_over(multiply(grad, xhat), leading_axes(x.rank() - normalized), false);
    results[1] = convert(sum, call.result_type(1).dtype);
  }
  return results;
}

/// The grouped form of a group norm: [N, group, C / group, HxW].
struct Groups {
  int64_t batch, channels, pixels, groups;
  Groups(const OpCall& call, size_t first)
      : batch(call.integer(first)),
        channels(call.integer(first + 1)),
        pixels(call.integer(first + 2)),
        groups(call.integer(first + 3)) {}
  Dims sizes() const { return {batch, groups, channels / groups, pixels}; }
  Value split(Value x) const { return reshape(x, sizes()); }
  /// A per-channel value [C] repeated to the grouped form.
  Value channelwise(Value v) const {
    return broadcast_in_dim(reshape(v, {groups, channels / groups}), sizes(), {1, 2});
  }
  /// A per-group value [N, group] with two kept dims.
  Value statistic(Value v) const { return reshape(v, {batch, groups, 1, 1}); }
  /// Sum of a grouped value per channel: [C].
  Value channel_sum(Value x) const { return reshape(sum_over(x, {0, 3}, false), {channels}); }
};

/// (input, weight?, bias?, N, C, HxW, group, eps) -> (output, mean [N, group], rstd [N, group])
Results native_group_norm(const OpCall& call) {
  Value input = call.tensor(0);
  DType dtype = compute_type(input.dtype());
  Groups form(call, 3);
  Moments m = moments(form.split(convert(input, dtype)), {2, 3}, call.operand(7, dtype));
  Value y = multiply(m.centered, expand_kept(m.rstd, form.sizes()));
  if (call.has(1)) y = multiply(y, form.channelwise(call.operand(1, dtype)));
  if (call.has(2)) y = add(y, form.channelwise(call.operand(2, dtype)));
  const TensorType& statistics = call.result_type(1);
  return {convert(reshape(y, input.dims()), call.result_type(0).dtype),
          convert(reshape(m.mean, statistics.dims), statistics.dtype),
          convert(reshape(m.rstd, statistics.dims), statistics.dtype)};
}

/// (grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask)
Results native_group_norm_backward(const OpCall& call) {
  DType dtype = compute_type(call.dtype(1));
  Groups form(call, 5);
  Value grad = form.split(call.operand(0, dtype)), x = form.split(call.operand(1, dtype));
  Value mean = form.statistic(call.operand(2, dtype)), rstd = form.statistic(call.operand(3, dtype));
  std::vector<bool> wanted = call.booleans(9);
  Value xhat = multiply(subtract(x, expand_kept(mean, x.dims())), expand_kept(rstd, x.dims()));
  Results results(3);
  if (wanted[0]) {
    Value g = call.has(4) ? multiply(grad, form.channelwise(call.operand(4, dtype))) : grad;
    Value dx = normalized_input_grad(g, xhat, rstd, {2, 3}, true);
    results[0] = convert(reshape(dx, call.result_type(0).dims), call.result_type(0).dtype);
  }
  if (wanted[1]) results[1] = convert(form.channel_sum(multiply(grad, xhat)), call.result_type(1).dtype);
  if (wanted[2]) results[2] = convert(form.channel_sum(grad), call.result_type(2).dtype);
  return results;
}

/// All axes but `dim`; none are left out for dim = -1, as in norm_except_dim.
Dims axes_except(size_t rank, int64_t dim) {
  Dims axes;
  for (size_t axis = 0; axis < rank; ++axis)
    if (static_cast<int64_t>(axis) != dim) axes.push_back(static_cast<int64_t>(axis));
  return axes;
}

/// (v, g, dim) -> (v * g / ||v||, ||v||), the norm over all dims but `dim`.
Results weight_norm(const OpCall& call) {
  DType dtype = compute_type(call.dtype(0));
  Value v = call.operand(0, dtype), g = call.operand(1, dtype);
  Value square = sum_over(multiply(v, v), axes_except(v.rank(), call.integer(2)), true);
  Value norm = sqrt(square);
  Value w = multiply(v, broadcast_to(divide(reshape(g, norm.dims()), norm), v.dims()));
  return {convert(w, call.result_type(0).dtype),
          convert(reshape(norm, call.result_type(1).dims), call.result_type(1).dtype)};
}

/// (grad_w, v, g, norms, dim) -> (grad_v, grad_g)
Results weight_norm_backward(const OpCall& call) {
  DType dtype = compute_type(call.dtype(1));
  Value grad = call.operand(0, dtype), v = call.operand(1, dtype);
  Value dot = sum_over(multiply(grad, v), axes_except(v.rank(), call.integer(4)), true);
  Value g = reshape(call.operand(2, dtype), dot.dims()), norm = reshape(call.operand(3, dtype), dot.dims());
  // d(v g / n): g / n * grad along v's own direction less the part that only changes the norm.
  Value scale = divide(g, norm);
  Value pull = divide(multiply(scale, dot), multiply(norm, norm));
  Value grad_v = subtract(multiply(grad, broadcast_to(scale, v.dims())), multiply(v, broadcast_to(pull, v.dims())));
  return {convert(grad_v, call.result_type(0).dtype),
          convert(reshape(divide(dot, norm), call.result_type(1).dims), call.result_type(1).dtype)};
}

// _fused_rms_norm has a CompositeImplicit kernel and an Autograd formula: a device kernel makes PyTorch
// choose the formula, so registering it keeps gradients.
constexpr Row kRows[] = {
    {"native_layer_norm", native_layer_norm, 0, 0, 0, true},
    {"native_layer_norm_backward", native_layer_norm_backward, 0, 0, 0, true},
    {"_fused_rms_norm", fused_rms_norm, 0, 0, 0, true},
    {"_fused_rms_norm_backward", fused_rms_norm_backward, 0, 0, 0, true},
    {"native_group_norm", native_group_norm, 0, 0, 0, true},
    {"native_group_norm_backward", native_group_norm_backward, 0, 0, 0, true},
    {"_weight_norm_interface", weight_norm},
    {"_weight_norm_interface_backward", weight_norm_backward},
};

}  // namespace

std::span<const Row> normalization_layer_rows() { return kRows; }

}  // namespace tpu::lowering
