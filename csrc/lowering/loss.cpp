// Pointwise losses with their backward operators, and the loss scaling of mixed precision.

#include "lowering/loss.h"

#include <algorithm>
#include <limits>

namespace tpu::lowering {

namespace hlo = stablehlo;

Dims common_sizes(const OpCall& call, size_t i, size_t j) {
  Dims a = call.tensor(i).dims(), b = call.tensor(j).dims();
  if (a.size() < b.size()) std::swap(a, b);
  size_t offset = a.size() - b.size();
  for (size_t k = 0; k < b.size(); ++k)
    if (a[offset + k] == 1) a[offset + k] = b[k];
  return a;
}

Value loss_operand(const OpCall& call, size_t i, const Dims& sizes) {
  return broadcast_to(call.operand(i, work_type(call)), sizes);
}

Value sum_all(Value x) { return hlo::reduce(x, hlo::Reducer::kAdd, iota(x.rank())); }

namespace {

/// `x` divided by the number of elements of a loss, of which argument `i` has the sizes.
Value divided_by_count(const OpCall& call, Value x, size_t i, const Dims& sizes) {
  const Dims axes = iota(sizes.size());
  const auto present = call.present_count(i, axes);
  if (!present) return div(x, static_cast<double>(product(sizes)));
  return hlo::divide(x, broadcast_to(convert(*present, x.dtype()), x.dims()));
}

}  // namespace

Values reduce_loss(const OpCall& call, Value loss, Reduction reduction) {
  if (reduction == Reduction::kNone) return finish(call, loss);
  Value sum = sum_all(call.without_rest(0, loss, scalar(call.builder(), 0.0, loss.dtype())));
  if (reduction == Reduction::kMean) sum = divided_by_count(call, sum, 0, loss.dims());
  return finish(call, sum);
}

Value scaled_gradient(const OpCall& call, const Dims& sizes, Reduction reduction) {
  Value grad = call.operand(0, work_type(call));
  // Scaling before broadcasting: a reduced loss has a 0-d gradient.
  if (reduction == Reduction::kMean) grad = divided_by_count(call, grad, 1, sizes);
  return broadcast_to(grad, sizes);
}

namespace {

struct Pair {
  Value input, target;
  Value difference() const { return hlo::subtract(input, target); }
};

/// Input and target, arguments `first` and `first + 1`.
Pair operands(const OpCall& call, size_t first) {
  Dims sizes = common_sizes(call, first, first + 1);
  return {loss_operand(call, first, sizes), loss_operand(call, first + 1, sizes)};
}

// ---- distances

Values mse_loss(const OpCall& call) {
  return reduce_loss(call, square(operands(call, 0).difference()), reduction_of(call, 2));
}

Values mse_loss_backward(const OpCall& call) {
  Value difference = operands(call, 1).difference();
  Value grad = scaled_gradient(call, difference.dims(), reduction_of(call, 3));
  return finish(call, mul(hlo::multiply(difference, grad), 2));
}

/// smooth_l1_loss(input, target, reduction, beta): quadratic within beta, divided by it.
Values smooth_l1_loss(const OpCall& call) {
  Value distance = hlo::abs(operands(call, 0).difference()), beta = work_scalar(call, 3, distance);
  Value near = hlo::divide(mul(square(distance), 0.5), beta);
  Value far = hlo::subtract(distance, mul(beta, 0.5));
  return reduce_loss(call, hlo::select(lt(distance, beta), near, far), reduction_of(call, 2));
}

/// `slope` where |difference| is below `limit`, else +-edge.
Value clipped_slope(Value difference, Value limit, Value slope, Value edge) {
  Value clipped = hlo::select(ge(difference, limit), edge, slope);
  return hlo::select(le(difference, hlo::negate(limit)), hlo::negate(edge), clipped);
}

Values smooth_l1_loss_backward(const OpCall& call) {
  Value difference = operands(call, 1).difference(), beta = work_scalar(call, 4, difference);
  Value slope = clipped_slope(difference, beta, hlo::divide(difference, beta), full_like(difference, 1));
  Value grad = scaled_gradient(call, difference.dims(), reduction_of(call, 3));
  return finish(call, hlo::multiply(slope, grad));
}

/// huber_loss(input, target, reduction, delta)
Values huber_loss(const OpCall& call) {
  Value distance = hlo::abs(operands(call, 0).difference()), delta = work_scalar(call, 3, distance);
  Value far = hlo::multiply(delta, hlo::subtract(distance, mul(delta, 0.5)));
  Value loss = hlo::select(le(distance, delta), mul(square(distance), 0.5), far);
  return reduce_loss(call, loss, reduction_of(call, 2));
}

Values huber_loss_backward(const OpCall& call) {
  Value difference = operands(call, 1).difference(), delta = work_scalar(call, 4, difference);
  Value slope = clipped_slope(difference, delta, difference, delta);
  Value grad = scaled_gradient(call, difference.dims(), reduction_of(call, 3));
  return finish(call, hlo::multiply(slope, grad));
}

// ---- binary cross entropy

Value weighted(const OpCall& call, Value loss, size_t weight) {
  return call.has(weight) ? hlo::multiply(loss, loss_operand(call, weight, loss.dims())) : loss;
}

Values binary_cross_entropy(const OpCall& call) {
  auto [x, target] = operands(call, 0);
  Value outside = hlo::logical_not(hlo::bit_and(ge(x, 0.0), le(x, 1.0)));
  call.check(hlo::reduce(outside, hlo::Reducer::kOr, iota(x.rank())), Code::kInvalidArgument,
             "all elements of input should be between 0 and 1");
  // Logarithms are limited to -100 so that a certain but wrong prediction stays finite.
  auto limited = [](Value log) { return hlo::maximum(log, full_like(log, -100)); };
  Value of_ones = hlo::multiply(target, limited(hlo::log(x)));
  Value of_zeros = hlo::multiply(add(target, -1), limited(hlo::log_plus_one(hlo::negate(x))));
  return reduce_loss(call, weighted(call, hlo::subtract(of_zeros, of_ones), 2), reduction_of(call, 3));
}

/// binary_cross_entropy_backward(grad, input, target, weight, reduction)
Values binary_cross_entropy_backward(const OpCall& call) {
  auto [x, target] = operands(call, 1);
  Value variance = hlo::multiply(x, rsub(x, 1));
  Value slope = hlo::divide(hlo::subtract(x, target), hlo::maximum(variance, full_like(variance, 1e-12)));
  Value grad = scaled_gradient(call, x.dims(), reduction_of(call, 4));
  return finish(call, weighted(call, hlo::multiply(slope, grad), 3));
}

/// binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)
Values binary_cross_entropy_with_logits(const OpCall& call) {
  auto [x, target] = operands(call, 0);
  Value log_probability = log_sigmoid(x);
  Value of_ones = log_probability;
  if (call.has(3)) {
    Value extra = hlo::multiply(add(loss_operand(call, 3, x.dims()), -1), target);
    of_ones = hlo::multiply(log_probability, add(extra, 1));
  }
  Value loss = hlo::subtract(hlo::multiply(rsub(target, 1), x), of_ones);
  return reduce_loss(call, weighted(call, loss, 2), reduction_of(call, 4));
}

// ---- soft margin

Values soft_margin_loss(const OpCall& call) {
  auto [x, target] = operands(call, 0);
  return reduce_loss(call, softplus(hlo::negate(hlo::multiply(x, target))), reduction_of(call, 2));
}

Values soft_margin_loss_backward(const OpCall& call) {
  auto [x, target] = operands(call, 1);
  Value slope = hlo::negate(hlo::multiply(target, hlo::logistic(hlo::negate(hlo::multiply(x, target)))));
  return finish(call, hlo::multiply(slope, scaled_gradient(call, x.dims(), reduction_of(call, 3))));
}

// ---- mixed precision

/// _amp_foreach_non_finite_check_and_unscale_(self[], found_inf, inv_scale): gradients times inv_scale, and
/// found_inf set to 1 when any of them was not finite.
Values unscale_gradients(const OpCall& call) {
  std::vector<Value> grads = call.tensors(0), results;
  Value found = call.tensor(1);
  Value inverse = call.operand(2, DType::kF32);
  Value any = ne(found, 0.0);
  for (Value grad : grads) {
    Value bad = hlo::logical_not(hlo::is_finite(grad));
    any = hlo::bit_or(any, broadcast_to(hlo::reduce(bad, hlo::Reducer::kOr, iota(bad.rank())), any.dims()));
    Value wide = hlo::convert(grad, compute_type(grad.dtype()));
    Value scale = hlo::reshape(hlo::convert(inverse, wide.dtype()), {});
    Value scaled = hlo::multiply(wide, broadcast_to(scale, wide.dims()));
    results.push_back(hlo::convert(scaled, grad.dtype()));
  }
  results.push_back(hlo::select(any, full_like(found, 1), found));
  return results;
}

/// _amp_update_scale_(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval)
Values update_scale(const OpCall& call) {
  Value scale = call.tensor(0), tracker = call.tensor(1);
  Value found = hlo::reshape(ne(call.tensor(2), 0.0), scale.dims());
  Value backed_off = hlo::multiply(scale, work_scalar(call, 4, scale));
  Value grown = hlo::multiply(scale, work_scalar(call, 3, scale));
  Value counted = hlo::add(tracker, full_like(tracker, 1));
  Value interval = tracker.builder().constant(call.integer(5), tracker.type());
  Value due = eq(counted, interval);
  Value due_scale = hlo::reshape(due, scale.dims());
  // A scale that would overflow stays where it is.
  Value kept = hlo::select(hlo::bit_and(due_scale, hlo::is_finite(grown)), grown, scale);
  Value reset = hlo::bit_or(due, hlo::reshape(found, tracker.dims()));
  return {hlo::select(found, backed_off, kept), hlo::select(reset, full_like(tracker, 0), counted)};
}

// ---- the table

constexpr Row kRows[] = {
    {"mse_loss", mse_loss},
    {"mse_loss_backward", mse_loss_backward},
    {"smooth_l1_loss", smooth_l1_loss},
    {"smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"huber_loss", huber_loss},
    {"huber_loss_backward", huber_loss_backward},
    {"binary_cross_entropy", binary_cross_entropy},
    {"binary_cross_entropy_backward", binary_cross_entropy_backward},
    {"binary_cross_entropy_with_logits", binary_cross_entropy_with_logits},
    {"soft_margin_loss", soft_margin_loss},
    {"soft_margin_loss_backward", soft_margin_loss_backward},
    {"_amp_foreach_non_finite_check_and_unscale_", unscale_gradients},
    {"_amp_update_scale_", update_scale},
};

}  // namespace

std::span<const Row> loss_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    for (auto part : {loss_class_rows(), loss_ctc_rows()}) all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
