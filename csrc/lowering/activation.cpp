// Activations and their backward operators. Half types compute in float32 and round once (elementwise.h).

#include <cmath>
#include <limits>

#include "lowering/elementwise.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

Value zeros_like(Value x) { return full_like(x, 0); }

/// Scalar argument `i` spread over the result in the work type.
Value parameter(const OpCall& call, size_t i) { return work_operand(call, i); }

/// Conjugate of a complex value: gradients of holomorphic functions multiply by it.
Value conjugate(Value x) { return is_complex(x.dtype()) ? hlo::complex(hlo::real(x), hlo::negate(hlo::imag(x))) : x; }

// ---- piecewise linear

Value relu(Value x) { return hlo::maximum(x, zeros_like(x)); }

Values hardtanh(const OpCall& call) {
  Value low = parameter(call, 1), high = parameter(call, 2);
  return finish(call, hlo::minimum(hlo::maximum(work_operand(call, 0), low), high));
}

Values hardtanh_backward(const OpCall& call) {
  Value grad = work_operand(call, 0), x = work_operand(call, 1);
  Value outside = hlo::bit_or(le(x, parameter(call, 2)), ge(x, parameter(call, 3)));
  return finish(call, hlo::select(outside, zeros_like(grad), grad));
}

Values threshold(const OpCall& call) {
  Value x = work_operand(call, 0);
  return finish(call, hlo::select(le(x, parameter(call, 1)), parameter(call, 2), x));
}

Values threshold_backward(const OpCall& call) {
  Value grad = work_operand(call, 0), x = work_operand(call, 1);
  return finish(call, hlo::select(le(x, parameter(call, 2)), zeros_like(grad), grad));
}

Values leaky_relu(const OpCall& call) {
  Value x = work_operand(call, 0);
  return finish(call, hlo::select(gt(x, 0.0), x, hlo::multiply(x, parameter(call, 1))));
}

Values leaky_relu_backward(const OpCall& call) {
  Value grad = work_operand(call, 0), x = work_operand(call, 1);
  return finish(call, hlo::select(gt(x, 0.0), grad, hlo::multiply(grad, parameter(call, 2))));
}

Value prelu(Value x, Value weight) { return hlo::select(gt(x, 0.0), x, hlo::multiply(weight, x)); }

/// Gradients of input and weight; autograd sums the second one to the weight's own sizes.
Values prelu_backward(const OpCall& call) {
  Value grad = work_operand(call, 0), x = work_operand(call, 1), weight = work_operand(call, 2);
  Value positive = gt(x, 0.0);
  Value grad_x = hlo::select(positive, grad, hlo::multiply(weight, grad));
  Value grad_weight = hlo::select(positive, zeros_like(grad), hlo::multiply(x, grad));
  return {convert_like_torch(grad_x, call.result_type(0).dtype),
          convert_like_torch(grad_weight, call.result_type(1).dtype)};
}

/// True inside [-lambda, lambda], false for NaN.
Value within(Value x, Value lambda) { return hlo::bit_and(ge(x, hlo::negate(lambda)), le(x, lambda)); }

Values hardshrink(const OpCall& call) {
  Value x = work_operand(call, 0);
  return finish(call, hlo::select(within(x, parameter(call, 1)), zeros_like(x), x));
}

Values softshrink(const OpCall& call) {
  Value x = work_operand(call, 0), lambda = parameter(call, 1);
  Value shrunk = hlo::select(gt(x, zeros_like(x)), hlo::subtract(x, lambda), hlo::add(x, lambda));
  return finish(call, hlo::select(within(x, lambda), zeros_like(x), shrunk));
}

Values shrink_backward(const OpCall& call) {  // of both shrinks
  Value grad = work_operand(call, 0), x = work_operand(call, 1);
  return finish(call, hlo::select(within(x, parameter(call, 2)), zeros_like(grad), grad));
}

/// min(max(x + 3, 0), 6)
Value shifted_relu6(Value x) { return hlo::minimum(hlo::maximum(add(x, 3), zeros_like(x)), full_like(x, 6)); }

Value hardsigmoid(Value x) { return div(shifted_relu6(x), 6); }

Value hardsigmoid_backward(Value grad, Value x) {
  Value inside = hlo::bit_and(gt(x, -3.0), lt(x, 3.0));
  return hlo::select(inside, div(grad, 6), zeros_like(grad));
}

Value hardswish(Value x) { return div(hlo::multiply(x, shifted_relu6(x)), 6); }

Value hardswish_backward(Value grad, Value x) {
  Value between = hlo::multiply(grad, add(div(x, 3), 0.5));
  return hlo::select(le(x, -3.0), zeros_like(grad), hlo::select(ge(x, 3.0), grad, between));
}

// ---- smooth

Value sigmoid_backward(Value grad, Value y) { return hlo::multiply(grad, conjugate(hlo::multiply(rsub(y, 1), y))); }

Value tanh_backward(Value grad, Value y) { return hlo::multiply(grad, conjugate(rsub(square(y), 1))); }

Value silu(Value x) { return hlo::multiply(x, hlo::logistic(x)); }

Value silu_backward(Value grad, Value x) {
  Value gate = hlo::logistic(x);
  Value slope = hlo::multiply(gate, add(hlo::multiply(x, rsub(gate, 1)), 1));
  return hlo::multiply(grad, slope);
}

Value mish(Value x) { return hlo::multiply(x, hlo::tanh(softplus(x))); }

Value mish_backward(Value grad, Value x) {
  Value gate = hlo::tanh(softplus(x));
  Value slope = hlo::multiply(hlo::multiply(x, hlo::logistic(x)), rsub(square(gate), 1));
  return hlo::multiply(grad, hlo::add(gate, slope));
}

constexpr double kSqrtHalf = 0.5 * std::numbers::sqrt2;
constexpr double kSqrtTwoOverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
constexpr double kGeluCubic = 0.044715;

/// Normal distribution function: (1 + erf(x / sqrt 2)) / 2.
Value normal_cdf(Value x) { return mul(add(hlo::erf(mul(x, kSqrtHalf)), 1), 0.5); }

/// tanh of gelu's cubic approximation.
Value gelu_tanh_inner(Value x) {
  Value cubic = hlo::add(x, mul(hlo::multiply(square(x), x), kGeluCubic));
  return hlo::tanh(mul(cubic, kSqrtTwoOverPi));
}

Values gelu(const OpCall& call) {
  Value x = work_operand(call, 0);
  if (call.string(1) != "tanh") return finish(call, hlo::multiply(x, normal_cdf(x)));
  return finish(call, hlo::multiply(mul(x, 0.5), add(gelu_tanh_inner(x), 1)));
}

Value gelu_slope(Value x) {
  Value density = mul(hlo::exponential(mul(square(x), -0.5)), 0.5 * kSqrtTwoOverPi);
  return hlo::add(normal_cdf(x), hlo::multiply(x, density));
}

Value gelu_tanh_slope(Value x) {
  Value inner = gelu_tanh_inner(x);
  Value inner_slope = mul(add(mul(square(x), 3 * kGeluCubic), 1), kSqrtTwoOverPi);
  Value right = hlo::multiply(hlo::multiply(mul(x, 0.5), rsub(square(inner), 1)), inner_slope);
  return hlo::add(mul(add(inner, 1), 0.5), right);
}

Values gelu_backward(const OpCall& call) {
  Value x = work_operand(call, 1);
  Value slope = call.string(2) == "tanh" ? gelu_tanh_slope(x) : gelu_slope(x);
  return finish(call, hlo::multiply(work_operand(call, 0), slope));
}

/// softplus(x, beta, threshold): linear where beta * x exceeds the threshold.
Values softplus_row(const OpCall& call) {
  Value x = work_operand(call, 0), beta = parameter(call, 1);
  Value scaled = hlo::multiply(x, beta);
  Value smooth = hlo::divide(softplus(scaled), beta);
  return finish(call, hlo::select(gt(scaled, parameter(call, 2)), x, smooth));
}

Values softplus_backward(const OpCall& call) {
  Value grad = work_operand(call, 0);
  Value scaled = hlo::multiply(work_operand(call, 1), parameter(call, 2));
  Value smooth = hlo::multiply(grad, hlo::logistic(scaled));
  return finish(call, hlo::select(gt(scaled, parameter(call, 3)), grad, smooth));
}

/// elu(x, alpha, scale, input_scale)
Values elu(const OpCall& call) {
  Value x = work_operand(call, 0), alpha = parameter(call, 1), scale = parameter(call, 2);
  Value negative = hlo::exponential_minus_one(hlo::multiply(x, parameter(call, 3)));
  negative = hlo::multiply(negative, hlo::multiply(alpha, scale));
  return finish(call, hlo::select(lt(x, 0.0), negative, hlo::multiply(x, scale)));
}

/// elu_backward(grad, alpha, scale, input_scale, is_result, self_or_result)
Values elu_backward(const OpCall& call) {
  Value grad = work_operand(call, 0), scale = parameter(call, 2), input_scale = parameter(call, 3);
  Value x = work_operand(call, 5);
  Value coefficient = hlo::multiply(parameter(call, 1), scale);
  Value slope = call.boolean(4) ? hlo::add(x, coefficient)
                                : hlo::multiply(coefficient, hlo::exponential(hlo::multiply(x, input_scale)));
  Value negative = hlo::multiply(hlo::multiply(grad, input_scale), slope);
  return finish(call, hlo::select(le(x, 0.0), negative, hlo::multiply(grad, scale)));
}

/// Output and the buffer exp(-|x|), in the form that PyTorch's metadata asks for (CUDA's buffer is empty).
Values log_sigmoid_forward(const OpCall& call) {
  Value x = work_operand(call, 0);
  const TensorType& buffer_type = call.result_type(1);
  Value buffer = hlo::exponential(hlo::negate(hlo::abs(x)));
  if (!(buffer_type.dims == buffer.dims())) buffer = call.builder().constant(0.0, buffer_type);
  return {convert_like_torch(log_sigmoid(x), call.result_type(0).dtype), convert_like_torch(buffer, buffer_type.dtype)};
}

/// d/dx log sigmoid(x) = sigmoid(-x); the forward buffer is not needed.
Value log_sigmoid_slope(Value grad, Value x) { return hlo::multiply(grad, hlo::logistic(hlo::negate(x))); }

/// logit_backward(grad, self, eps)
Values logit_backward(const OpCall& call) {
  Value grad = work_operand(call, 0), x = work_operand(call, 1);
  Value slope = hlo::divide(grad, hlo::multiply(x, rsub(x, 1)));
  if (call.is_none(2)) {
    Value outside = hlo::bit_or(lt(x, 0.0), gt(x, 1.0));
    return finish(call, hlo::select(outside, full_like(x, std::numeric_limits<double>::quiet_NaN()), slope));
  }
  Value eps = work_scalar(call, 2, x);
  Value outside = hlo::bit_or(lt(x, eps), gt(x, rsub(eps, 1)));
  return finish(call, hlo::select(outside, zeros_like(x), slope));
}

// ---- gated linear units

/// The two halves of `x` along `axis`.
std::pair<Value, Value> halves(Value x, int64_t axis) {
  Dims start(x.rank(), 0), limit = x.dims(), step(x.rank(), 1);
  int64_t half = x.dim(axis) / 2;
  limit[axis] = half;
  Value first = hlo::slice(x, start, limit, step);
  start[axis] = half;
  limit[axis] = 2 * half;
  return {first, hlo::slice(x, start, limit, step)};
}

Values glu(const OpCall& call) {
  Value x = hlo::convert(call.tensor(0), work_type(call));
  auto [value, gate] = halves(x, wrap_axis(call.integer(1), x.rank()));
  return finish(call, hlo::multiply(value, hlo::logistic(gate)));
}

Values glu_backward(const OpCall& call) {
  Value grad = call.operand(0, work_type(call)), x = call.operand(1, work_type(call));
  int64_t axis = wrap_axis(call.integer(2), x.rank());
  auto [value, gate] = halves(x, axis);
  Value sigmoid = hlo::logistic(gate);
  Value grad_value = hlo::multiply(grad, sigmoid);
  Value grad_gate = hlo::multiply(hlo::multiply(grad_value, rsub(sigmoid, 1)), value);
  std::vector<Value> parts = {grad_value, grad_gate};
  return finish(call, hlo::concatenate(parts, axis));
}

/// Forward-mode derivative: glu_jvp(glu, x, dx, dim).
Values glu_jvp(const OpCall& call) {
  DType dtype = work_type(call);
  Value x = call.operand(1, dtype);
  int64_t axis = wrap_axis(call.integer(3), x.rank());
  Value sigmoid = hlo::logistic(halves(x, axis).second);
  auto [value_tangent, gate_tangent] = halves(call.operand(2, dtype), axis);
  Value gate_part = hlo::multiply(hlo::multiply(call.operand(0, dtype), rsub(sigmoid, 1)), gate_tangent);
  return finish(call, hlo::add(hlo::multiply(value_tangent, sigmoid), gate_part));
}

/// Forward-mode derivative of glu_backward: glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim).
Values glu_backward_jvp(const OpCall& call) {
  DType dtype = work_type(call);
  Value grad = call.operand(1, dtype), x = call.operand(2, dtype), grad_tangent = call.operand(3, dtype);
  int64_t axis = wrap_axis(call.integer(5), x.rank());
  auto [value, gate] = halves(x, axis);
  auto [value_tangent, gate_tangent] = halves(call.operand(4, dtype), axis);
  Value sigmoid = hlo::logistic(gate);
  Value slope = hlo::multiply(sigmoid, rsub(sigmoid, 1));
  Value slope_tangent = hlo::multiply(slope, gate_tangent);
  Value first = hlo::add(hlo::multiply(grad_tangent, sigmoid), hlo::multiply(grad, slope_tangent));
  // Product rule over grad * slope * value, where the slope itself changes by slope_tangent * (1 - 2 sigmoid).
  Value curved = hlo::multiply(hlo::multiply(grad, value), hlo::multiply(slope_tangent, rsub(mul(sigmoid, 2), 1)));
  Value linear = hlo::add(hlo::multiply(grad_tangent, value), hlo::multiply(grad, value_tangent));
  std::vector<Value> parts = {first, hlo::add(hlo::multiply(slope, linear), curved)};
  return finish(call, hlo::concatenate(parts, axis));
}

// ---- randomised leaky relu

/// rrelu_with_noise_backward(grad, self, noise, lower, upper, training, self_is_result)
Values rrelu_backward(const OpCall& call) {
  Value grad = work_operand(call, 0);
  Value lower = parameter(call, 3), upper = parameter(call, 4);
  Value slope = mul(hlo::add(lower, upper), 0.5);
  Value averaged = hlo::select(gt(work_operand(call, 1), 0.0), grad, hlo::multiply(grad, slope));
  if (!call.boolean(5)) return finish(call, averaged);
  // As in PyTorch, a training pass whose bounds coincide counts as evaluation.
  Value random = gt(hlo::subtract(upper, lower), 1e-6);
  return finish(call, hlo::select(random, hlo::multiply(grad, work_operand(call, 2)), averaged));
}

// ---- the table

constexpr Row kRows[] = {
    {"relu", unary<relu>},
    {"hardtanh", hardtanh},
    {"hardtanh_backward", hardtanh_backward},
    {"threshold", threshold},
    {"threshold_backward", threshold_backward},
    {"leaky_relu", leaky_relu},
    {"leaky_relu_backward", leaky_relu_backward},
    {"_prelu_kernel", binary<prelu>},
    {"_prelu_kernel_backward", prelu_backward},
    {"hardshrink", hardshrink},
    {"hardshrink_backward", shrink_backward},
    {"softshrink", softshrink},
    {"softshrink_backward", shrink_backward},
    {"hardsigmoid", unary<hardsigmoid>},
    {"hardsigmoid_backward", binary<hardsigmoid_backward>},
    {"hardswish", unary<hardswish>},
    {"hardswish_backward", binary<hardswish_backward>},
    {"sigmoid", unary<hlo::logistic>},
    {"sigmoid_backward", binary<sigmoid_backward>},
    {"tanh_backward", binary<tanh_backward>},
    {"silu", unary<silu>},
    {"silu_backward", binary<silu_backward>},
    {"mish", unary<mish>},
    {"mish_backward", binary<mish_backward>},
    {"gelu", gelu},
    {"gelu_backward", gelu_backward},
    {"softplus", softplus_row},
    {"softplus_backward", softplus_backward},
    {"elu", elu},
    {"elu_backward", elu_backward},
    {"log_sigmoid_forward", log_sigmoid_forward},
    {"log_sigmoid_backward", binary<log_sigmoid_slope>},
    {"logit_backward", logit_backward},
    {"glu", glu},
    {"glu_backward", glu_backward},
    {"glu_jvp", glu_jvp},
    {"glu_backward_jvp", glu_backward_jvp},
    {"rrelu_with_noise_backward", rrelu_backward},
};

}  // namespace

std::span<const Row> activation_rows() { return kRows; }

}  // namespace tpu::lowering
