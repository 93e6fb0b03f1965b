// Fused optimizer steps: _fused_adam_, _fused_adamw_, _fused_sgd_, _fused_adagrad_. A step over all parameters
// is one program. The rows return the new contents of every written list, lists in argument order; a gradient
// that is not unscaled is returned as it is.

#include <cmath>

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {

using stablehlo::Compare;

namespace {

using Results = std::vector<Value>;

constexpr uint32_t bit(int i) { return 1U << i; }

/// What the four optimizers share: gradient scaling, `maximize`, and leaving everything as it is when a
/// gradient overflowed.
class Step {
 public:
  Step(const OpCall& call, size_t maximize, size_t grad_scale) : call_(call), maximize_(call.boolean(maximize)) {
    if (call.has(grad_scale)) scale_ = call.operand(grad_scale, DType::kF32);
    if (call.has(grad_scale + 1)) {
      const Value found = call.operand(grad_scale + 1, DType::kF32);
      overflow_ = reshape(compare(found, full_like(found, 1), Compare::kEq), {});
    }
  }

  /// Gradient as the caller sees it afterwards, in the compute type.
  Value unscaled(Value grad) const {
    const Value wide = widen(grad);
    return scale_.defined() ? divide(wide, spread(reshape(scale_, {}), wide)) : wide;
  }
  /// Gradient as the step uses it: negated to maximise.
  Value direction(Value unscaled_grad) const { return maximize_ ? negate(unscaled_grad) : unscaled_grad; }

  /// `updated` (compute type) rounded to the dtype of `old`, or `old` itself when the step is skipped.
  Value keep(Value updated, Value old) const {
    const Value rounded = convert(updated, old.dtype());
    return overflow_.defined() ? select(overflow_, old, rounded) : rounded;
  }
  Value kept_grad(Value unscaled_grad, Value old) const { return scale_.defined() ? keep(unscaled_grad, old) : old; }

  /// Number argument `i` spread to the dims and dtype of `like`.
  Value number(size_t i, Value like) const { return spread(reshape(call_.operand(i, like.dtype()), {}), like); }

  static Value widen(Value x) { return convert(x, compute_type(x.dtype())); }
  static Value spread(Value scalar_value, Value like) {
    return broadcast_to(convert(scalar_value, like.dtype()), like.dims());
  }

 private:
  const OpCall& call_;
  bool maximize_;
  Value scale_;
  Value overflow_;
};

/// x * factor; the factor is a constant of the step.
Value scaled(Value x, double factor) { return multiply(x, full_like(x, factor)); }

/// 1 - beta^step. In float32 the subtraction would lose four digits for beta = 0.999, so the power is taken as
/// an exponential minus one of an exactly known logarithm.
Value bias_correction(Value step, double beta) {
  if (beta == 0) return full_like(step, 1);
  return negate(exponential_minus_one(scaled(step, std::log(beta))));
}

// ---- Adam and AdamW
// (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
//  amsgrad, maximize, grad_scale, found_inf)

struct AdamOptions {
  double beta1, beta2, weight_decay, eps;
  bool amsgrad, decoupled;
};

struct AdamTensors {
  Value parameter, grad, average, square, max_square;
};

/// One parameter's new values, in the compute type; `grad` is the direction already.
AdamTensors adam_update(const AdamOptions& options, AdamTensors t, Value step, Value lr) {
  const Value correction1 = bias_correction(step, options.beta1);
  const Value correction2 = bias_correction(step, options.beta2);
  const Value rate = broadcast_to(lr, t.parameter.dims());
  if (options.weight_decay != 0) {
    const Value decay = scaled(t.parameter, options.weight_decay);
    if (options.decoupled) {
      t.parameter = subtract(t.parameter, multiply(rate, decay));
    } else {
      t.grad = add(t.grad, decay);
    }
  }
  t.average = add(t.average, scaled(subtract(t.grad, t.average), 1 - options.beta1));
  t.square = add(scaled(t.square, options.beta2), scaled(multiply(t.grad, t.grad), 1 - options.beta2));
  Value second = t.square;
  if (options.amsgrad) second = t.max_square = maximum(t.max_square, t.square);
  const Value root = divide(sqrt(second), Step::spread(sqrt(correction2), second));
  const Value denominator = add(root, full_like(root, options.eps));
  const Value size = Step::spread(divide(lr, correction1), t.average);
  t.parameter = subtract(t.parameter, divide(multiply(size, t.average), denominator));
  return t;
}

Results adam(const OpCall& call, bool decoupled) {
  const AdamOptions options{call.real(7), call.real(8), call.real(9), call.real(10), call.boolean(11), decoupled};
  const Step step(call, 12, 13);
  const auto parameters = call.tensors(0), grads = call.tensors(1), averages = call.tensors(2);
  const auto squares = call.tensors(3), max_squares = call.tensors(4), steps = call.tensors(5);
  std::vector<Results> updated(5);
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Value grad = step.unscaled(grads[k]);
    const DType dtype = compute_type(parameters[k].dtype());
    const auto wide = [dtype](Value x) { return convert(x, dtype); };
    const AdamTensors next = adam_update(options,
                                         {wide(parameters[k]), step.direction(wide(grad)), wide(averages[k]),
                                          wide(squares[k]), options.amsgrad ? wide(max_squares[k]) : Value()},
                                         reshape(wide(steps[k]), {}), reshape(call.operand(6, dtype), {}));
    updated[0].push_back(step.keep(next.parameter, parameters[k]));
    updated[1].push_back(step.kept_grad(grad, grads[k]));
    updated[2].push_back(step.keep(next.average, averages[k]));
    updated[3].push_back(step.keep(next.square, squares[k]));
    if (options.amsgrad) updated[4].push_back(step.keep(next.max_square, max_squares[k]));
  }
  if (!options.amsgrad) updated[4] = max_squares;
  Results all;
  for (const Results& list : updated) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Results lower_adam(const OpCall& call) { return adam(call, false); }
Results lower_adamw(const OpCall& call) { return adam(call, true); }

// ---- SGD
// (self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
//  grad_scale, found_inf)

Results lower_sgd(const OpCall& call) {
  const double weight_decay = call.real(3), momentum = call.real(4), dampening = call.real(6);
  const bool nesterov = call.boolean(7), is_first_step = call.boolean(9);
  const Step step(call, 8, 10);
  const auto parameters = call.tensors(0), grads = call.tensors(1), buffers = call.tensors(2);
  Results new_parameters, new_grads, new_buffers;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Value grad = step.unscaled(grads[k]);
    const Value parameter = Step::widen(parameters[k]);
    Value direction = step.direction(convert(grad, parameter.dtype()));
    if (weight_decay != 0) direction = add(direction, scaled(parameter, weight_decay));
    if (momentum != 0) {
      Value buffer = direction;
      if (!is_first_step) {
        buffer = add(scaled(convert(buffers[k], parameter.dtype()), momentum), scaled(direction, 1 - dampening));
      }
      new_buffers.push_back(step.keep(buffer, buffers[k]));
      direction = nesterov ? add(direction, scaled(buffer, momentum)) : buffer;
    }
    new_parameters.push_back(
        step.keep(subtract(parameter, multiply(direction, step.number(5, parameter))), parameters[k]));
    new_grads.push_back(step.kept_grad(grad, grads[k]));
  }
  if (momentum == 0) new_buffers = buffers;
  Results all = std::move(new_parameters);
  all.insert(all.end(), new_grads.begin(), new_grads.end());
  all.insert(all.end(), new_buffers.begin(), new_buffers.end());
  return all;
}

// ---- Adagrad
// (self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf)

/// `steps_written`: whether the schema counts state_steps among the written lists.
Results adagrad(const OpCall& call, bool steps_written) {
  const double lr_decay = call.real(5), weight_decay = call.real(6), eps = call.real(7);
  const Step step(call, 8, 9);
  const auto parameters = call.tensors(0), grads = call.tensors(1), sums = call.tensors(2), steps = call.tensors(3);
  Results new_parameters, new_grads, new_sums;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Value grad = step.unscaled(grads[k]);
    const Value parameter = Step::widen(parameters[k]);
    Value direction = step.direction(convert(grad, parameter.dtype()));
    if (weight_decay != 0) direction = add(direction, scaled(parameter, weight_decay));
    const Value sum = add(convert(sums[k], parameter.dtype()), multiply(direction, direction));
    const Value count = reshape(convert(steps[k], parameter.dtype()), {});
    const Value decay = add(scaled(subtract(count, full_like(count, 1)), lr_decay), full_like(count, 1));
    const Value rate = divide(reshape(call.operand(4, parameter.dtype()), {}), decay);
    const Value root = sqrt(sum);
    const Value change = divide(multiply(Step::spread(rate, direction), direction), add(root, full_like(root, eps)));
    new_parameters.push_back(step.keep(subtract(parameter, change), parameters[k]));
    new_grads.push_back(step.kept_grad(grad, grads[k]));
    new_sums.push_back(step.keep(sum, sums[k]));
  }
  Results all = std::move(new_parameters);
  all.insert(all.end(), new_grads.begin(), new_grads.end());
  all.insert(all.end(), new_sums.begin(), new_sums.end());
  if (steps_written) all.insert(all.end(), steps.begin(), steps.end());
  return all;
}

Results lower_adagrad(const OpCall& call) { return adagrad(call, true); }
Results lower_adagrad_tensor_lr(const OpCall& call) { return adagrad(call, false); }

const Row kRows[] = {
    {"_fused_adam_", lower_adam, 0, bit(6)},       {"_fused_adam_.tensor_lr", lower_adam, 0, bit(6)},
    {"_fused_adamw_", lower_adamw, 0, bit(6)},     {"_fused_adamw_.tensor_lr", lower_adamw, 0, bit(6)},
    {"_fused_sgd_", lower_sgd, 0, bit(5)},         {"_fused_sgd_.tensor_lr", lower_sgd, 0, bit(5)},
    {"_fused_adagrad_", lower_adagrad, 0, bit(4)}, {"_fused_adagrad_.tensor_lr", lower_adagrad_tensor_lr, 0, bit(4)},
};

}  // namespace

std::span<const Row> optimizer_rows() { return kRows; }

}  // namespace tpu::lowering
