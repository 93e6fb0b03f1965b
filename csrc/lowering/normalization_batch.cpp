// Batch norm: PyTorch has one schema per way of handling the running statistics; all share two functions.
// The channel is dim 1, statistics are per channel over the other dims in the compute type.

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"

namespace tpu::lowering {

namespace {

using Results = std::vector<Value>;

Dims statistic_axes(size_t rank) {
  Dims axes;
  for (size_t axis = 0; axis < rank; ++axis)
    if (axis != 1) axes.push_back(static_cast<int64_t>(axis));
  return axes;
}

/// A per-channel value [C] repeated to `sizes`.
Value channelwise(Value v, const Dims& sizes) { return broadcast_in_dim(v, sizes, {1}); }

/// The arguments of one batch norm call, whatever its schema.
struct BatchNorm {
  const OpCall& call;
  bool training;
  size_t momentum, eps;               // argument positions
  bool has_running_arguments = true;  // arguments 3 and 4 are the running statistics
  bool has_running(size_t i) const { return has_running_arguments && call.has(i); }
};

struct BatchNormResults {
  Value output;
  Value mean, invstd;               // what was used, [C]
  Value running_mean, running_var;  // new values at their own dtype; undefined when not given
};

/// (1 - momentum) * old + momentum * fresh, at the dtype of `old`.
Value blended(Value old, Value fresh, Value momentum) {
  Value m = broadcast_to(momentum, fresh.dims());
  Value kept = multiply(convert(old, fresh.dtype()), subtract(full_like(m, 1.0), m));
  return convert(add(kept, multiply(fresh, m)), old.dtype());
}

/// How many elements of argument `i`, the images `x`, a channel has; a number for each channel.
Value element_count(const OpCall& call, size_t i, Value x, const Dims& axes) {
  const Dims channels{x.dim(1)};
  if (const auto count = call.present_count(i, axes)) return broadcast_to(convert(*count, x.dtype()), channels);
  return broadcast_to(scalar(call.builder(), static_cast<double>(reduced_numel(x, axes)), x.dtype()), channels);
}

Value inverse_deviation(Value variance, Value eps) { return rsqrt(add(variance, broadcast_to(eps, variance.dims()))); }

BatchNormResults batch_norm(const BatchNorm& norm) {
  const OpCall& call = norm.call;
  Value input = call.tensor(0);
  DType dtype = compute_type(input.dtype());
  Value x = convert(input, dtype), eps = call.operand(norm.eps, dtype);
  Dims axes = statistic_axes(x.rank());
  BatchNormResults r;
  if (norm.has_running(3)) r.running_mean = call.tensor(3);
  if (norm.has_running(4)) r.running_var = call.tensor(4);
  if (norm.training) {
    const Value count = element_count(call, 0, x, axes);
    r.mean = divide(sum_over(x, axes, false), count);
    Value centered = subtract(x, channelwise(r.mean, x.dims()));
    centered = call.without_rest(0, centered, scalar(call.builder(), 0.0, dtype));
    Value squares = sum_over(multiply(centered, centered), axes, false);
    r.invstd = inverse_deviation(divide(squares, count), eps);
    if (r.running_mean.defined() || r.running_var.defined()) {
      Value momentum = call.operand(norm.momentum, dtype);
      Value unbiased = divide(squares, subtract(count, full_like(count, 1)));
      if (r.running_mean.defined()) r.running_mean = blended(r.running_mean, r.mean, momentum);
      if (r.running_var.defined()) r.running_var = blended(r.running_var, unbiased, momentum);
    }
  } else {
    r.mean = convert(r.running_mean, dtype);
    r.invstd = inverse_deviation(convert(r.running_var, dtype), eps);
  }
  Value scale = call.has(1) ? multiply(r.invstd, call.operand(1, dtype)) : r.invstd;
  Value y = multiply(subtract(x, channelwise(r.mean, x.dims())), channelwise(scale, x.dims()));
  if (call.has(2)) y = add(y, channelwise(call.operand(2, dtype), x.dims()));
  r.output = convert(y, input.dtype());
  return r;
}

/// A saved statistic in the form PyTorch announces for result `k`: evaluation saves empty tensors.
Value saved(const OpCall& call, size_t k, Value statistic) {
  const TensorType& type = call.result_type(k);
  if (type.dims == statistic.dims()) return convert(statistic, type.dtype);
  return call.builder().constant(0.0, type);
}

Value reserve(const OpCall& call, size_t k) { return call.builder().constant(int64_t{0}, call.result_type(k)); }

/// The new running statistics; an argument that is not given has no new value.
void append_running(Results& results, const BatchNormResults& r) {
  results.push_back(r.running_mean);
  results.push_back(r.running_var);
}

/// (output, save_mean, save_invstd); `written` is how many written arguments stand before them in the
/// call's result types.
Results outputs(const OpCall& call, const BatchNormResults& r, size_t written = 0) {
  return {r.output, saved(call, written + 1, r.mean), saved(call, written + 2, r.invstd)};
}

/// Schemas with annotated writes: new running statistics first, then the schema's own results.
Results written_first(const OpCall& call, const BatchNormResults& r) {
  Results results;
  append_running(results, r);
  for (Value value : outputs(call, r, 2)) results.push_back(value);
  return results;
}

/// native_batch_norm writes the running statistics although its schema does not say so: two results
/// beyond the schema's three are the new values of arguments 3 and 4 (undefined when the argument is None).
Results native_batch_norm(const OpCall& call) {
  BatchNormResults r = batch_norm({call, call.boolean(5), 6, 7});
  Results results = outputs(call, r);
  append_running(results, r);
  return results;
}

/// The same with annotated writes: the new values of arguments 3 and 4 come first.
Results native_batch_norm_legit(const OpCall& call) {
  return written_first(call, batch_norm({call, call.boolean(5), 6, 7}));
}

Results native_batch_norm_no_stats(const OpCall& call) {
  return outputs(call, batch_norm({call, call.boolean(3), 4, 5, false}));
}

Results native_batch_norm_no_training(const OpCall& call) { return outputs(call, batch_norm({call, false, 5, 6})); }

Results batch_norm_with_update(const OpCall& call) {
  Results results = written_first(call, batch_norm({call, true, 5, 6}));
  results.push_back(reserve(call, 5));
  return results;
}

Results batch_norm_with_update_functional(const OpCall& call) {
  BatchNormResults r = batch_norm({call, true, 5, 6});
  Results results = outputs(call, r);
  results.push_back(reserve(call, 3));
  append_running(results, r);
  return results;
}

Results batch_norm_no_update(const OpCall& call) {
  Results results = outputs(call, batch_norm({call, false, 5, 6}));
  results.push_back(reserve(call, 3));
  return results;
}

/// (grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps, output_mask):
/// also batch_norm_backward, which adds `reserve` at the end.
Results batch_norm_backward(const OpCall& call) {
  DType dtype = compute_type(call.dtype(1));
  Value grad = call.operand(0, dtype), x = call.operand(1, dtype);
  bool train = call.boolean(7);
  Value mean = call.operand(train ? 5 : 3, dtype);
  Value invstd = train ? call.operand(6, dtype) : inverse_deviation(call.operand(4, dtype), call.operand(8, dtype));
  std::vector<bool> wanted = call.booleans(9);
  Dims axes = statistic_axes(x.rank());
  Value centered = subtract(x, channelwise(mean, x.dims()));
  Value grad_sum = sum_over(grad, axes, false);
  Value dot = multiply(sum_over(multiply(grad, centered), axes, false), invstd);  // sum of grad * xhat
  Results results(3);
  if (wanted[0]) {
    Value scale = call.has(2) ? multiply(invstd, call.operand(2, dtype)) : invstd;
    Value inner = grad;
    if (train) {
      const Value count = element_count(call, 1, x, axes);
      Value projection = divide(multiply(dot, invstd), count);
      inner = subtract(subtract(grad, channelwise(divide(grad_sum, count), x.dims())),
                       multiply(centered, channelwise(projection, x.dims())));
    }
    results[0] = convert(multiply(inner, channelwise(scale, x.dims())), call.result_type(0).dtype);
  } else if (call.result_type(0).dims == x.dims()) {
    // PyTorch's meta kernel announces this gradient even when nobody wants it.
    results[0] = call.builder().constant(0.0, call.result_type(0));
  }
  if (wanted[1]) results[1] = convert(dot, call.result_type(1).dtype);
  if (wanted[2]) results[2] = convert(grad_sum, call.result_type(2).dtype);
  return results;
}

// The momentum is a run-time operand where statistics are updated: a cumulative average changes it every step.
constexpr uint32_t kMomentum5 = 1u << 5, kMomentum6 = 1u << 6;

constexpr Row kRows[] = {
    {"native_batch_norm", native_batch_norm, 0, kMomentum6, 0, true},
    {"_native_batch_norm_legit", native_batch_norm_legit, 0, kMomentum6, 0, true},
    {"_native_batch_norm_legit.no_stats", native_batch_norm_no_stats, 0, 0, 0, true},
    {"_native_batch_norm_legit_functional", native_batch_norm, 0, kMomentum6, 0, true},
    {"_native_batch_norm_legit_no_training", native_batch_norm_no_training, 0, 0, 0, true},
    {"_batch_norm_with_update", batch_norm_with_update, 0, kMomentum5, 0, true},
    {"_batch_norm_with_update_functional", batch_norm_with_update_functional, 0, kMomentum5, 0, true},
    {"_batch_norm_no_update", batch_norm_no_update, 0, 0, 0, true},
    {"native_batch_norm_backward", batch_norm_backward, 0, 0, 0, true},
    {"batch_norm_backward", batch_norm_backward, 0, 0, 0, true},
};

}  // namespace

std::span<const Row> normalization_batch_rows() { return kRows; }

}  // namespace tpu::lowering
