// Moments (var, std), vector norms and the distances made of them.

#include "lowering/reduction.h"
#include "lowering/reduction_families.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

// ---- moments

struct VarMean {
  Value variance;
  Value mean;
};

/// Variance with `correction` and mean over `axes`, both kept as size 1, in the compute type of `x`. Two
/// passes, since E[x^2] - E[x]^2 cancels. A complex variance is the real E[|x - mean|^2].
VarMean var_mean(Value x, const Dims& axes, double correction) {
  Value mean = mean_over(x, axes, true);
  Value centered = subtract(x, expand_kept(mean, x.dims()));
  Value squares = is_complex(x.dtype())
                      ? add(multiply(real(centered), real(centered)), multiply(imag(centered), imag(centered)))
                      : multiply(centered, centered);
  Value sum = sum_over(squares, axes, true);
  double divisor = std::max(0.0, static_cast<double>(reduced_numel(x, axes)) - correction);
  return {divide_exactly(sum, full_like(sum, divisor)), mean};
}

/// (self, dim?, *, correction?, keepdim) -> var or std, and with kMean the mean after it.
template <bool kRoot, bool kMean>
Results moment(const OpCall& call) {
  Value x = call.tensor(0);
  x = convert(x, compute_type(x.dtype()));
  std::optional<Scalar> correction = call.is_none(2) ? std::nullopt : call.known(2);
  if (!call.is_none(2) && !correction) call.mismatch(2, "a known correction");
  VarMean m = var_mean(x, reduced_axes(x, call.ints_or(1, {})), correction ? correction->as_double() : 1.0);
  if (kRoot) m.variance = sqrt(m.variance);
  Results results = {m.variance, m.mean};
  if (!kMean) results.pop_back();
  for (size_t k = 0; k < results.size(); ++k)
    results[k] = convert(reshape(results[k], call.result_type(k).dims), call.result_type(k).dtype);
  return results;
}

// ---- vector norms

/// |x|^p for a known p, without a run-time power where a multiplication does.
Value power_of(Value magnitude, double p) {
  if (p == 1) return magnitude;
  if (p == 2) return multiply(magnitude, magnitude);
  if (p == 3) return multiply(magnitude, multiply(magnitude, magnitude));
  if (p == 0.5) return sqrt(magnitude);
  return power(magnitude, full_like(magnitude, p));
}

Value root_of(Value sum, double p) {
  if (p == 1) return sum;
  if (p == 2) return sqrt(sum);
  return power(sum, full_like(sum, 1.0 / p));
}

/// The p-norm of `x` (a compute type, possibly complex) over `axes`; the result is real.
Value vector_norm(Value x, double p, const Dims& axes, bool keep) {
  if (p == 0) {
    Value hits = convert(convert_like_torch(x, DType::kBool), real_type(x.dtype()));
    return sum_over(hits, axes, keep);
  }
  if (p == 2 && !is_complex(x.dtype())) return sqrt(sum_over(multiply(x, x), axes, keep));
  Value magnitude = abs(x);
  if (std::isinf(p)) return reduce_over(magnitude, p > 0 ? Reducer::kMaximum : Reducer::kMinimum, axes, keep);
  return root_of(sum_over(power_of(magnitude, p), axes, keep), p);
}

double known_order(const OpCall& call, size_t i, double fallback) {
  if (call.is_none(i)) return fallback;
  std::optional<Scalar> p = call.known(i);
  if (!p) call.mismatch(i, "a known order");
  return p->as_double();
}

/// Norm of argument 0 over `dim` at the result's dtype; `dtype` is what the input is converted to first.
Value norm_result(const OpCall& call, double p, const Dims& dim, bool keep, DType dtype) {
  Value x = accumulator_input(call.tensor(0), dtype);
  Value norm = vector_norm(x, p, reduced_axes(x, dim), keep);
  return convert_like_torch(norm, call.result_type().dtype);
}

DType dtype_or_own(const OpCall& call, size_t i) {
  return i < call.size() && !call.is_none(i) ? call.dtype_arg(i) : call.dtype(0);
}

Results linalg_vector_norm(const OpCall& call) {
  return {norm_result(call, known_order(call, 1, 2), call.ints_or(2, {}), call.boolean(3), dtype_or_own(call, 4))};
}

Results norm_scalar(const OpCall& call) {
  return {norm_result(call, known_order(call, 1, 2), {}, false, dtype_or_own(call, 2))};
}

Results norm_dim(const OpCall& call) {
  return {norm_result(call, known_order(call, 1, 2), call.ints_or(2, {}), call.boolean(3), dtype_or_own(call, 4))};
}

/// (self, p, dim, maxnorm): slices along `dim` whose p-norm exceeds maxnorm are scaled down to it.
Results renorm(const OpCall& call) {
  DType dtype = compute_type(call.dtype(0));
  Value x = call.operand(0, dtype);
  Dims axes = iota(x.rank());
  axes.erase(static_cast<size_t>(wrap_axis(call.integer(2), x.rank())));
  Value norm = vector_norm(x, known_order(call, 1, 2), axes, true);
  Value limit = broadcast_to(call.operand(3, norm.dtype()), norm.dims());
  Value factor = divide(limit, add(norm, full_like(norm, 1e-7)));
  factor = select(compare(norm, limit, Compare::kGt), factor, full_like(factor, 1.0));
  Value scaled = multiply(x, broadcast_to(convert_like_torch(factor, dtype), x.dims()));
  return {convert(scaled, call.result_type().dtype)};
}

// ---- distances

Results dist(const OpCall& call) {
  DType dtype = call.promoted();
  Value a = call.operand(0, compute_type(dtype)), b = call.operand(1, compute_type(dtype));
  Dims sizes = a.dims();  // broadcast sizes of the two
  for (size_t i = 0; i < b.rank(); ++i) {
    if (i >= sizes.size())
      sizes.insert(0, b.dim(b.rank() - 1 - i));
    else if (int64_t& size = sizes[sizes.size() - 1 - i]; size == 1)
      size = b.dim(b.rank() - 1 - i);
  }
  Value difference = subtract(broadcast_to(a, sizes), broadcast_to(b, sizes));
  Value norm = vector_norm(difference, known_order(call, 2, 2), reduced_axes(difference, {}), false);
  return {convert_like_torch(norm, call.result_type().dtype)};
}

/// Leading sizes of a batch of point sets that broadcast against each other.
Dims batch_sizes(Value x1, Value x2) {
  size_t rank = std::max(x1.rank(), x2.rank()) - 2;
  Dims sizes(rank, 1);
  for (Value x : {x1, x2}) {
    size_t own = x.rank() - 2;
    for (size_t i = 0; i < own; ++i)
      if (x.dim(own - 1 - i) != 1) sizes[rank - 1 - i] = x.dim(own - 1 - i);
  }
  return sizes;
}

Value with_batch(Value x, Dims batch) {
  batch.push_back(x.dim(x.rank() - 2));
  batch.push_back(x.dim(x.rank() - 1));
  return broadcast_to(x, batch);
}

/// All pairwise differences x1[i] - x2[j]: [batch..., P, R, M].
Value pairwise_differences(Value x1, Value x2) {
  Dims batch = batch_sizes(x1, x2);
  x1 = with_batch(x1, batch);
  x2 = with_batch(x2, batch);
  Dims sizes = batch;
  for (int64_t size : {x1.dim(batch.size()), x2.dim(batch.size()), x1.dim(batch.size() + 1)}) sizes.push_back(size);
  int64_t axis = static_cast<int64_t>(batch.size());
  return subtract(broadcast_to(unsqueeze(x1, axis + 1), sizes), broadcast_to(unsqueeze(x2, axis), sizes));
}

/// Euclidean distances by one product, |a|^2 - 2 a.b + |b|^2, as PyTorch does for many points.
Value euclidean_by_product(Value x1, Value x2) {
  Dims batch = batch_sizes(x1, x2);
  x1 = with_batch(x1, batch);
  x2 = with_batch(x2, batch);
  int64_t axis = static_cast<int64_t>(batch.size()), last = axis + 1;
  Dims batch_axes = iota(batch.size());
  Value cross = dot_general(x1, x2, {batch_axes, batch_axes, {last}, {last}}, x1.dtype());
  Value norm1 = sum_over(multiply(x1, x1), {last}, false), norm2 = sum_over(multiply(x2, x2), {last}, false);
  // Of close points the terms cancel. In this order the first sum, which rounds, is about as large as one square, and
  // the second is exact.
  Value rest = subtract(broadcast_to(unsqueeze(norm1, last), cross.dims()), add(cross, cross));
  Value square = add(rest, broadcast_to(unsqueeze(norm2, axis), cross.dims()));
  return sqrt(maximum(square, full_like(square, 0.0)));
}

Results euclidean_dist(const OpCall& call) {
  DType dtype = compute_type(call.result_type().dtype);
  Value d = euclidean_by_product(call.operand(0, dtype), call.operand(1, dtype));
  return {convert(d, call.result_type().dtype)};
}

/// (x1, x2, p, compute_mode?): mode 1 asks for products, 0 (or none) takes them for more than 25 points.
Results cdist_forward(const OpCall& call) {
  DType dtype = compute_type(call.result_type().dtype);
  Value x1 = call.operand(0, dtype), x2 = call.operand(1, dtype);
  double p = call.real(2);
  int64_t mode = call.integer_or(3, 0);
  bool many = x1.dim(x1.rank() - 2) > 25 || x2.dim(x2.rank() - 2) > 25;
  if (p == 2 && (mode == 1 || (mode == 0 && many)))
    return {convert(euclidean_by_product(x1, x2), call.result_type().dtype)};
  Value difference = pairwise_differences(x1, x2);
  Value d = vector_norm(difference, p, {static_cast<int64_t>(difference.rank()) - 1}, false);
  return {convert(d, call.result_type().dtype)};
}

/// Derivative of the p-norm `norm` of `difference` times `grad` (both of `difference`'s sizes). Points at
/// distance 0 get 0, PyTorch's choice of subgradient.
Value norm_derivative(Value difference, Value norm, Value grad, double p) {
  Value zero = full_like(difference, 0.0);
  if (p == 0) return zero;
  if (p == 1) return multiply(grad, sign(difference));
  Value magnitude = abs(difference);
  if (std::isinf(p)) {
    Value extreme = compare(magnitude, norm, Compare::kEq);
    return select(extreme, multiply(grad, sign(difference)), zero);
  }
  Value scaled =
      p == 2 ? divide(multiply(grad, difference), norm)
             : divide(multiply(multiply(sign(difference), power_of(magnitude, p - 1)), grad), power_of(norm, p - 1));
  Value flat = compare(norm, zero, Compare::kEq);
  // Below 2 the power of a zero difference is infinite or undefined.
  if (p < 2) flat = bit_or(flat, compare(magnitude, zero, Compare::kEq));
  return select(flat, zero, scaled);
}

/// (grad [.., P, R], x1 [.., P, M], x2 [.., R, M], p, cdist [.., P, R]) -> grad of x1
Results cdist_backward(const OpCall& call) {
  DType dtype = compute_type(call.result_type().dtype);
  Value difference = pairwise_differences(call.operand(1, dtype), call.operand(2, dtype));
  int64_t last = static_cast<int64_t>(difference.rank()) - 1;
  auto spread = [&](size_t i) {
    Value v = call.operand(i, dtype);
    return broadcast_to(unsqueeze(v, static_cast<int64_t>(v.rank())), difference.dims());
  };
  Value grad = norm_derivative(difference, spread(4), spread(0), call.real(3));
  // A batch that x1 does not have (only empty ones come here) sums away too.
  Value sum = sum_to(sum_over(grad, {last - 1}, false), call.result_type().dims);
  return {convert(sum, call.result_type().dtype)};
}

/// (self, other, *, dim): cross product of vectors of size 3 along `dim`. Narrow floats are not widened:
/// the two products cancel, and PyTorch rounds each of them.
Results linalg_cross(const OpCall& call) {
  const TensorType& type = call.result_type();
  Value a = broadcast_to(call.operand(0, type.dtype), type.dims);
  Value b = broadcast_to(call.operand(1, type.dtype), type.dims);
  int64_t axis = wrap_axis(call.integer(2), type.rank());
  auto part = [&](Value x, int64_t i) { return slice_axis(x, axis, i % 3, i % 3 + 1); };
  std::vector<Value> parts;
  for (int64_t i = 0; i < 3; ++i) {
    parts.push_back(subtract(multiply(part(a, i + 1), part(b, i + 2)), multiply(part(a, i + 2), part(b, i + 1))));
  }
  return {concatenate(parts, axis)};
}

constexpr Row kRows[] = {
    {"var.correction", moment<false, false>, 1u << 2},
    {"std.correction", moment<true, false>, 1u << 2},
    {"var_mean.correction", moment<false, true>, 1u << 2},
    {"std_mean.correction", moment<true, true>, 1u << 2},
    {"linalg_vector_norm", linalg_vector_norm, 1u << 1},
    {"norm.Scalar", norm_scalar, 1u << 1},
    {"norm.ScalarOpt_dtype", norm_scalar, 1u << 1},
    {"norm.ScalarOpt_dim", norm_dim, 1u << 1},
    {"norm.ScalarOpt_dim_dtype", norm_dim, 1u << 1},
    {"renorm", renorm, 1u << 1},
    {"dist", dist, 1u << 2},
    {"_euclidean_dist", euclidean_dist},
    {"_cdist_forward", cdist_forward, 1u << 2},
    {"_cdist_backward", cdist_backward, 1u << 3},
    {"linalg_cross", linalg_cross},
};

}  // namespace

std::span<const Row> reduction_norm_rows() { return kRows; }

}  // namespace tpu::lowering
