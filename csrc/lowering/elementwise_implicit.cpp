// Gradients of samples with respect to the parameters of their distribution: a sample x is held at its quantile, so
// dx/da = -(dF/da) / (dF/dx) for the distribution function F (Figurnov, Mohamed and Mnih, "Implicit Reparameterization
// Gradients", 2018). F and its derivative are summed as power series in float64: near its end F is 1 but for a little,
// and the terms cancel.

#include <limits>

#include "lowering/elementwise.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kMaxSteps = 1e4;

Value any_of(Value mask) { return hlo::reduce(mask, hlo::Reducer::kOr, iota(mask.rank())); }

/// Sums of terms c_0 = 1, c_n = c_(n-1) ratio(n), and of c_n times h_n with h_0 = `first`, h_n = h_(n-1) + slope(n):
/// a series and its derivative. Ends when every `wanted` element has terms that no longer count.
using OfStep = Value (*)(std::span<const Value> parameters, Value n);
std::pair<Value, Value> series(std::span<const Value> parameters, Value first, Value wanted, OfStep ratio,
                               OfStep slope) {
  const Value like = parameters[0];
  const Value one = full_like(like, 1), zero = full_like(like, 0);
  // State: n, c_n, h_n, both sums. The terms grow first where the ratio is above 1.
  const std::vector<Value> init = {scalar(like.builder(), 0.0, like.dtype()), one, first, one, first};
  const auto unfinished = [&](std::span<const Value> state) -> Values {
    const Value next = ratio(parameters, broadcast_to(add(state[0], 1), like.dims()));
    const Value small = lt(hlo::multiply(state[1], add(hlo::abs(state[2]), 1)), mul(state[3], kEpsilon / 16));
    const Value active = hlo::bit_and(wanted, hlo::logical_not(hlo::bit_and(small, lt(next, 1))));
    return {hlo::bit_and(any_of(active), lt(state[0], kMaxSteps))};
  };
  const auto body = [&](std::span<const Value> state) -> Values {
    const Value n = add(state[0], 1), each = broadcast_to(n, like.dims());
    const Value term = hlo::multiply(state[1], ratio(parameters, each));
    const Value h = hlo::add(state[2], slope(parameters, each));
    return {n, term, h, hlo::add(state[3], term), hlo::add(state[4], hlo::multiply(term, h))};
  };
  const std::vector<Value> sums = hlo::while_loop(init, unfinished, body);
  return {sums[3], sums[4]};
}

// ---- gamma: F = x^a exp(-x) / Gamma(a + 1) sum of x^n / ((a + 1) ... (a + n))

Value gamma_ratio(std::span<const Value> p, Value n) { return hlo::divide(p[1], hlo::add(p[0], n)); }
Value gamma_slope(std::span<const Value> p, Value n) { return rdiv(hlo::add(p[0], n), 1); }

/// For large `a`, by the Cornish-Fisher expansion x = a + z sqrt(a) + (z^2 - 1) / 3 + (z^3 - 7 z) / (36 sqrt(a)) + ...
/// of the quantile z, whose error is of order 1 / a^2 here.
Value gamma_gradient_of_large(Value a, Value x) {
  const Value root = hlo::sqrt(a);
  const Value first = hlo::divide(hlo::subtract(x, a), root);
  Value z = first;
  for (int i = 0; i < 3; ++i) {
    const Value second = hlo::divide(mul(add(square(z), -1), 1.0 / 3), root);
    const Value third = hlo::divide(mul(hlo::multiply(z, add(square(z), -7)), 1.0 / 36), a);
    z = hlo::subtract(hlo::subtract(first, second), third);
  }
  const Value correction = hlo::divide(mul(hlo::multiply(z, add(square(z), -7)), 1.0 / 72), hlo::multiply(a, root));
  return hlo::subtract(add(hlo::divide(mul(z, 0.5), root), 1), correction);
}

/// _standard_gamma_grad(a, x): dx/da = x sum of c_n (psi(a) + 1/a + ... + 1/(a + n) - log x) / a.
Value gamma_gradient(Value a, Value x) {
  const DType dtype = a.dtype();
  a = hlo::convert(a, DType::kF64);
  x = hlo::convert(x, DType::kF64);
  const Value stepwise = hlo::bit_and(hlo::bit_and(gt(a, 0), gt(x, 0)), lt(a, 1e4));
  const Value safe_a = hlo::select(stepwise, a, full_like(a, 1)), safe_x = hlo::select(stepwise, x, full_like(x, 1));
  const Value first = hlo::subtract(hlo::digamma(add(safe_a, 1)), hlo::log(safe_x));
  const Value parameters[] = {safe_a, safe_x};
  const Value sum = series(parameters, first, stepwise, gamma_ratio, gamma_slope).second;
  const Value small = hlo::divide(hlo::multiply(safe_x, sum), safe_a);
  const Value large = gamma_gradient_of_large(a, x);
  // A sample of 0 is one that was too small for its dtype.
  const Value result = hlo::select(stepwise, small, hlo::select(eq(x, 0), x, large));
  return hlo::convert(result, dtype);
}

// ---- beta: F = x^p (1 - x)^q / (p B(p, q)) sum of (p + q) ... (p + q + n - 1) / ((p + 1) ... (p + n)) x^n

Value beta_ratio(std::span<const Value> p, Value n) {
  const Value above = add(hlo::add(hlo::add(p[0], p[1]), n), -1);
  return hlo::divide(hlo::multiply(p[2], above), hlo::add(p[0], n));
}
Value rising_slope(std::span<const Value> p, Value n) { return rdiv(add(hlo::add(hlo::add(p[0], p[1]), n), -1), 1); }
Value first_slope(std::span<const Value> p, Value n) {
  return hlo::subtract(rising_slope(p, n), rdiv(hlo::add(p[0], n), 1));
}

/// _dirichlet_grad(x, a, total): dx/da / (1 - x) of a sample x of Beta(a, b), b = total - a. Below the mean the series
/// is one in x; above it F is 1 less that of 1 - x with the parameters exchanged.
Value beta_gradient(Value x, Value a, Value total) {
  const DType dtype = a.dtype();
  const auto wide = [](Value v) { return hlo::convert(v, DType::kF64); };
  x = wide(x), a = wide(a), total = wide(total);
  const Value b = hlo::subtract(total, a), rest = rsub(x, 1);
  const Value valid = hlo::bit_and(hlo::bit_and(gt(x, 0), lt(x, 1)), hlo::bit_and(gt(a, 0), gt(b, 0)));
  const auto safe = [&](Value v, double number) { return hlo::select(valid, v, full_like(v, number)); };
  const Value sx = safe(x, 0.25), sa = safe(a, 1), sb = safe(b, 1), sr = safe(rest, 0.75);
  const Value of_total = hlo::digamma(hlo::add(sa, sb));
  const Value low = hlo::compare(sx, hlo::divide(sa, hlo::add(sa, sb)), hlo::Compare::kLe);
  // d log(x^p (1 - x)^q / (p B(p, q))) by the parameter in question
  const Value direct = hlo::add(hlo::subtract(hlo::log(sx), hlo::digamma(add(sa, 1))), of_total);
  const Value exchanged = hlo::add(hlo::subtract(hlo::log(sx), hlo::digamma(sa)), of_total);
  const Value below[] = {sa, sb, hlo::select(low, sx, mul(hlo::divide(sa, hlo::add(sa, sb)), 0.5))};
  const Value above[] = {sb, sa, hlo::select(low, mul(hlo::divide(sb, hlo::add(sa, sb)), 0.5), sr)};
  const Value of_low = series(below, direct, hlo::bit_and(valid, low), beta_ratio, first_slope).second;
  const Value of_high =
      series(above, exchanged, hlo::bit_and(valid, hlo::logical_not(low)), beta_ratio, rising_slope).second;
  // The prefactor over the density is x (1 - x) / p, of which the result has no 1 - x.
  const Value by_low = hlo::negate(hlo::divide(hlo::multiply(sx, of_low), sa));
  const Value by_high = hlo::divide(hlo::multiply(sx, of_high), sb);
  const Value result = hlo::select(low, by_low, by_high);
  return hlo::convert(hlo::select(valid, result, full_like(result, 0)), dtype);
}

constexpr Row kRows[] = {
    {"_standard_gamma_grad", binary<gamma_gradient>},
    {"_dirichlet_grad", ternary<beta_gradient>},
};

}  // namespace

std::span<const Row> elementwise_implicit_rows() { return kRows; }

}  // namespace tpu::lowering
