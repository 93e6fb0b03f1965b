// Regularised incomplete gamma functions P(a, x) and Q(a, x), in float64: the prefactor x^a exp(-x) / Gamma(a) loses
// too many digits in float32 when `a` is large.

#include <limits>

#include "lowering/elementwise.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kMaxSteps = 4000;

/// x^a exp(-x) / Gamma(a + 1)
Value prefactor(Value a, Value x) {
  Value exponent = hlo::subtract(hlo::multiply(a, hlo::log(x)), x);
  return hlo::exponential(hlo::subtract(exponent, hlo::lgamma(add(a, 1))));
}

/// True while any element of `active` is set and the step count is within bounds.
Value goes_on(Value step, Value active) {
  Value any = hlo::reduce(active, hlo::Reducer::kOr, iota(active.rank()));
  return hlo::bit_and(any, lt(step, kMaxSteps));
}

/// P(a, x) by its power series, for x below a + 1: sum of x^k / ((a + 1) ... (a + k)).
Value lower_series(Value a, Value x, Value wanted) {
  Value one = full_like(x, 1);
  auto active = [&](Value term, Value sum) {
    return hlo::bit_and(wanted, gt(hlo::abs(term), mul(hlo::abs(sum), kEpsilon)));
  };
  std::vector<Value> init = {scalar(x.builder(), 0.0, x.dtype()), one, one};
  auto unfinished = [&](std::span<const Value> state) -> Values {
    return {goes_on(state[0], active(state[1], state[2]))};
  };
  auto body = [&](std::span<const Value> state) -> Values {
    Value k = add(state[0], 1);
    Value term = hlo::multiply(state[1], hlo::divide(x, hlo::add(a, broadcast_to(k, a.dims()))));
    return {k, term, hlo::add(state[2], term)};
  };
  return hlo::multiply(hlo::while_loop(init, unfinished, body)[2], prefactor(a, x));
}

/// Q(a, x) by its continued fraction (modified Lentz), for x above a + 1.
Value upper_fraction(Value a, Value x, Value wanted) {
  // Far below any b here, and within the range of float32: a TPU keeps a float64 as two of them.
  constexpr double kTiny = 1e-30;
  auto nonzero = [&](Value v) { return hlo::select(lt(hlo::abs(v), kTiny), full_like(v, kTiny), v); };
  Value b = add(hlo::subtract(x, a), 1);
  Value d = rdiv(nonzero(b), 1);
  // State: step, b, c, d, value, last factor.
  std::vector<Value> init = {scalar(x.builder(), 0.0, x.dtype()), b, full_like(x, 1 / kTiny), d, d, full_like(x, 2)};
  auto unfinished = [&](std::span<const Value> state) -> Values {
    Value active = hlo::bit_and(wanted, gt(hlo::abs(add(state[5], -1)), kEpsilon));
    return {goes_on(state[0], active)};
  };
  auto body = [&](std::span<const Value> state) -> Values {
    Value step = add(state[0], 1), k = broadcast_to(step, x.dims());
    Value numerator = hlo::multiply(k, hlo::subtract(a, k));
    Value denominator = add(state[1], 2);
    Value inverse = rdiv(nonzero(hlo::add(hlo::multiply(numerator, state[3]), denominator)), 1);
    Value ratio = nonzero(hlo::add(denominator, hlo::divide(numerator, state[2])));
    Value factor = hlo::multiply(inverse, ratio);
    return {step, denominator, ratio, inverse, hlo::multiply(state[4], factor), factor};
  };
  Value fraction = hlo::while_loop(init, unfinished, body)[4];
  return hlo::multiply(hlo::multiply(fraction, prefactor(a, x)), a);
}

/// P(a, x) by Temme's uniform expansion, for large `a`, where the other methods cancel and converge slowly.
Value lower_asymptotic(Value a, Value x) {
  // Further out the result is 0 or 1 to all digits.
  Value excess = hlo::divide(hlo::subtract(x, a), a);
  excess = hlo::maximum(hlo::minimum(excess, full_like(excess, 10)), full_like(excess, -0.9));
  // eta^2 / 2 = excess - log(1 + excess), by its series where that cancels.
  Value series = full_like(a, 0);
  for (int k = 12; k >= 2; --k) {
    double coefficient = (k % 2 ? -1.0 : 1.0) / k;
    series = add(hlo::multiply(series, excess), coefficient);
  }
  series = hlo::multiply(series, square(excess));
  Value direct = hlo::subtract(excess, hlo::log_plus_one(excess));
  Value half_square = hlo::select(lt(hlo::abs(excess), 0.05), series, direct);
  Value eta = hlo::sqrt(mul(half_square, 2));
  eta = hlo::select(lt(excess, 0), hlo::negate(eta), eta);
  Value leading = mul(hlo::erfc(hlo::negate(hlo::multiply(eta, hlo::sqrt(mul(a, 0.5))))), 0.5);
  // c0(eta) + c1(eta) / a by their Taylor series: the exponential leaves only small eta.
  Value c0 = full_like(eta, 0);
  for (double term : {-139.0 / 777600, 1.0 / 2835, 1.0 / 864, -2.0 / 135, 1.0 / 12, -1.0 / 3})
    c0 = add(hlo::multiply(c0, eta), term);
  Value c1 = add(mul(eta, -1.0 / 288), -1.0 / 540);
  Value correction = hlo::add(c0, hlo::divide(c1, a));
  Value scale = hlo::divide(hlo::exponential(hlo::negate(hlo::multiply(a, half_square))),
                            hlo::sqrt(mul(a, 2 * std::numbers::pi)));
  return hlo::subtract(leading, hlo::multiply(scale, correction));
}

/// P(a, x), or Q(a, x) = 1 - P for `upper`.
template <bool upper>
Value incomplete_gamma(Value a, Value x) {
  DType dtype = a.dtype();
  a = hlo::convert(a, DType::kF64);
  x = hlo::convert(x, DType::kF64);
  Value valid = hlo::bit_and(hlo::bit_and(gt(a, 0), gt(x, 0)), hlo::bit_and(lt(a, kInfinity), lt(x, kInfinity)));
  Value asymptotic = hlo::bit_and(valid, gt(a, 1e4));
  Value stepwise = hlo::bit_and(valid, hlo::logical_not(asymptotic));
  Value use_series = lt(x, add(a, 1));
  // Elements of the other method run on harmless numbers.
  Value safe_a = hlo::select(stepwise, a, full_like(a, 1)), safe_x = hlo::select(stepwise, x, full_like(x, 1));
  Value series_x = hlo::select(use_series, safe_x, mul(safe_a, 0.5));
  Value fraction_x = hlo::select(use_series, add(safe_a, 2), safe_x);
  Value below = lower_series(safe_a, series_x, hlo::bit_and(stepwise, use_series));
  Value above = upper_fraction(safe_a, fraction_x, hlo::bit_and(stepwise, hlo::logical_not(use_series)));
  Value lower = hlo::select(use_series, below, rsub(above, 1));
  Value result = upper ? hlo::select(use_series, rsub(below, 1), above) : lower;

  Value large = lower_asymptotic(a, x);
  result = hlo::select(asymptotic, upper ? rsub(large, 1) : large, result);

  // P is 1 at a = 0 and at x = infinity, 0 at x = 0 and a = infinity; both at once and negatives are undefined.
  auto value = [&](double p) { return full_like(a, upper ? 1 - p : p); };
  Value nan = full_like(a, std::numeric_limits<double>::quiet_NaN());
  Value a_zero = eq(a, 0), x_zero = eq(x, 0), a_infinite = eq(a, kInfinity), x_infinite = eq(x, kInfinity);
  Value edge = hlo::select(a_zero, hlo::select(gt(x, 0), value(1), nan), nan);
  edge = hlo::select(hlo::bit_and(x_zero, gt(a, 0)), value(0), edge);
  edge = hlo::select(hlo::bit_and(a_infinite, ge(x, 0)), hlo::select(x_infinite, nan, value(0)), edge);
  edge = hlo::select(hlo::bit_and(x_infinite, hlo::bit_and(ge(a, 0), hlo::logical_not(a_infinite))), value(1), edge);
  return hlo::convert(hlo::select(valid, result, edge), dtype);
}

constexpr Row kRows[] = {
    {"igamma", binary<incomplete_gamma<false>>},
    {"igammac", binary<incomplete_gamma<true>>},
};

}  // namespace

std::span<const Row> elementwise_gamma_rows() { return kRows; }

}  // namespace tpu::lowering
