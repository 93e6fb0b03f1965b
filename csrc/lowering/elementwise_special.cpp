// Special functions: Bessel functions, the error function's relatives, zeta, entropy. Where CHLO has none, each
// is a Chebyshev series on two ranges of its argument (elementwise_special_tables.h).

#include <cmath>
#include <limits>
#include <string>

#include "lowering/elementwise.h"
#include "lowering/elementwise_special_tables.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Sum of c[k] T_k(t) by Clenshaw's recurrence; float32 needs fewer terms than the tables hold.
Value chebyshev(Value t, std::span<const double> c) {
  double largest = 0, tiny = t.dtype() == DType::kF64 ? 0 : 1e-10;
  for (double term : c) largest = std::max(largest, std::abs(term));
  size_t count = c.size();
  while (count > 1 && std::abs(c[count - 1]) < tiny * largest) --count;
  Value twice = mul(t, 2), previous = full_like(t, 0), current = full_like(t, 0);
  for (size_t k = count - 1; k > 0; --k) {
    Value next = hlo::subtract(add(hlo::multiply(twice, current), c[k]), previous);
    previous = current;
    current = next;
  }
  return hlo::subtract(add(hlo::multiply(t, current), c[0]), previous);
}

/// `near` where `is_near`, else `far`.
Value pick(Value is_near, Value near, Value far) { return hlo::select(is_near, near, far); }

// ---- modified Bessel functions

/// exp(-|x|) I0(x)
Value scaled_i0(Value x) {
  Value length = hlo::abs(x);
  Value near = chebyshev(add(mul(length, 0.25), -1), kI0Small);
  Value far = hlo::multiply(chebyshev(add(rdiv(length, 16), -1), kI0Large), hlo::rsqrt(length));
  return pick(le(length, 8), near, far);
}

/// exp(-|x|) I1(x)
Value scaled_i1(Value x) {
  Value length = hlo::abs(x);
  Value near = hlo::multiply(chebyshev(add(mul(length, 0.25), -1), kI1Small), length);
  Value far = hlo::multiply(chebyshev(add(rdiv(length, 16), -1), kI1Large), hlo::rsqrt(length));
  Value magnitude = pick(le(length, 8), near, far);
  return hlo::select(lt(x, 0), hlo::negate(magnitude), magnitude);
}

Value modified_i0(Value x) { return hlo::multiply(hlo::exponential(hlo::abs(x)), scaled_i0(x)); }
Value modified_i1(Value x) { return hlo::multiply(hlo::exponential(hlo::abs(x)), scaled_i1(x)); }

/// The series of a K function for small x, in t = x^2 / 2 - 1.
Value k_argument(Value x) { return add(mul(square(x), 0.5), -1); }

/// `value` for positive x, infinity at 0, NaN below.
Value on_positives(Value x, Value value, double at_zero) {
  Value edge = hlo::select(eq(x, 0), full_like(x, at_zero), full_like(x, kNaN));
  return hlo::select(gt(x, 0), value, edge);
}

/// K0 (scaled: times exp(x)).
template <bool scaled>
Value modified_k0(Value x) {
  Value near = hlo::subtract(chebyshev(k_argument(x), kK0Small), hlo::multiply(hlo::log(mul(x, 0.5)), modified_i0(x)));
  Value far = hlo::multiply(chebyshev(add(rdiv(x, 4), -1), kK0Large), hlo::rsqrt(x));
  if (scaled) near = hlo::multiply(near, hlo::exponential(x));
  if (!scaled) far = hlo::multiply(far, hlo::exponential(hlo::negate(x)));
  return on_positives(x, pick(le(x, 2), near, far), kInfinity);
}

/// K1 (scaled: times exp(x)).
template <bool scaled>
Value modified_k1(Value x) {
  Value near = hlo::add(hlo::divide(chebyshev(k_argument(x), kK1Small), x),
                        hlo::multiply(hlo::log(mul(x, 0.5)), modified_i1(x)));
  Value far = hlo::multiply(chebyshev(add(rdiv(x, 4), -1), kK1Large), hlo::rsqrt(x));
  if (scaled) near = hlo::multiply(near, hlo::exponential(x));
  if (!scaled) far = hlo::multiply(far, hlo::exponential(hlo::negate(x)));
  return on_positives(x, pick(le(x, 2), near, far), kInfinity);
}

// ---- Bessel functions

/// Series variable of the range 0 <= x <= 8.
Value bessel_near(Value x) { return add(mul(square(x), 1.0 / 32), -1); }

/// sqrt(2 / (pi x)) (P a + Q b) with the slowly varying amplitudes of order 0 or 1 for x >= 8.
Value bessel_far(Value x, int order, Value a, Value b) {
  Value t = add(rdiv(square(x), 128), -1);
  Value p = chebyshev(t, order == 0 ? std::span<const double>(kP0Large) : std::span<const double>(kP1Large));
  Value q = chebyshev(t, order == 0 ? std::span<const double>(kQ0Large) : std::span<const double>(kQ1Large));
  Value wave = hlo::add(hlo::multiply(p, a), hlo::multiply(hlo::divide(q, x), b));
  return hlo::multiply(hlo::sqrt(rdiv(x, 2 / kPi)), wave);
}

/// Phase of the oscillation of order 0 or 1.
Value bessel_phase(Value x, int order) { return add(x, order == 0 ? -kPi / 4 : -3 * kPi / 4); }

Value far_j(Value x, int order) {
  Value phase = bessel_phase(x, order);
  return bessel_far(x, order, hlo::cosine(phase), hlo::negate(hlo::sine(phase)));
}

Value far_y(Value x, int order) {
  Value phase = bessel_phase(x, order);
  return bessel_far(x, order, hlo::sine(phase), hlo::cosine(phase));
}

Value near_j0(Value x) { return chebyshev(bessel_near(x), kJ0Small); }
Value near_j1(Value x) { return hlo::multiply(chebyshev(bessel_near(x), kJ1Small), x); }

Value bessel_j0(Value x) {
  x = hlo::abs(x);
  return pick(le(x, 8), near_j0(x), far_j(x, 0));
}

Value bessel_j1(Value x) {
  Value length = hlo::abs(x);
  Value magnitude = pick(le(length, 8), near_j1(length), far_j(length, 1));
  return hlo::select(lt(x, 0), hlo::negate(magnitude), magnitude);
}

Value bessel_y0(Value x) {
  Value singular = mul(hlo::multiply(hlo::log(x), near_j0(x)), 2 / kPi);
  Value near = hlo::add(chebyshev(bessel_near(x), kY0Small), singular);
  return on_positives(x, pick(le(x, 8), near, far_y(x, 0)), -kInfinity);
}

Value bessel_y1(Value x) {
  Value singular = hlo::subtract(hlo::multiply(hlo::log(x), near_j1(x)), rdiv(x, 1));
  Value near = hlo::add(hlo::multiply(chebyshev(bessel_near(x), kY1Small), x), mul(singular, 2 / kPi));
  return on_positives(x, pick(le(x, 8), near, far_y(x, 1)), -kInfinity);
}

/// sin(x) / x, 1 at 0 and 0 at infinity.
Value spherical_bessel_j0(Value x) {
  Value quotient = hlo::divide(hlo::sine(x), x);
  return hlo::select(eq(x, 0), full_like(x, 1), hlo::select(is_inf(x), full_like(x, 0), quotient));
}

// ---- the Airy function

/// Ai(x): decaying for positive x, oscillating for negative x; NaN at infinity, as in PyTorch.
Value airy_ai(Value x) {
  const double right_start = std::pow(2.0, 2.5) / 3, left_start = 18;  // of z, at x = 2 and x = -9
  Value length = hlo::abs(x), root = hlo::sqrt(length);
  Value z = mul(hlo::multiply(length, root), 2.0 / 3), quarter = hlo::rsqrt(root);
  Value right = chebyshev(add(rdiv(z, 2 * right_start), -1), kAiryRight);
  right = hlo::multiply(hlo::multiply(right, quarter), hlo::exponential(hlo::negate(z)));
  Value middle = chebyshev(add(mul(add(x, 9), 2.0 / 11), -1), kAiryMiddle);
  Value t = add(rdiv(square(z), 2 * left_start * left_start), -1), phase = add(z, kPi / 4);
  Value wave = hlo::subtract(hlo::multiply(chebyshev(t, kAiryP), hlo::sine(phase)),
                             hlo::multiply(hlo::divide(chebyshev(t, kAiryQ), z), hlo::cosine(phase)));
  Value left = mul(hlo::multiply(wave, quarter), std::numbers::inv_sqrtpi);
  Value result = hlo::select(gt(x, 2), right, hlo::select(lt(x, -9), left, middle));
  return hlo::select(is_inf(x), full_like(x, kNaN), result);
}

// ---- relatives of the error function

/// exp(x^2) erfc(x)
Value scaled_erfc(Value x) {
  Value shifted = add(hlo::abs(x), 4);
  Value positive = hlo::divide(chebyshev(add(rdiv(shifted, 8), -1), kErfcx), shifted);
  Value negative = hlo::subtract(mul(hlo::exponential(square(x)), 2), positive);
  return hlo::select(lt(x, 0), negative, positive);
}

/// Logarithm of the normal distribution function.
Value log_normal_cdf(Value x) {
  Value scaled = mul(x, -0.5 * std::numbers::sqrt2);
  Value left = hlo::subtract(hlo::log(mul(scaled_erfc(scaled), 0.5)), square(scaled));
  Value right = hlo::log_plus_one(mul(hlo::erfc(hlo::negate(scaled)), -0.5));
  return hlo::select(lt(x, -1), left, right);
}

/// Inverse of the normal distribution function.
Value inverse_normal_cdf(Value p) {
  Value upper = gt(p, 0.5);
  Value tail = hlo::select(upper, rsub(p, 1), p);
  // In the tails, through z = sqrt(-2 log p); in the middle through erf's inverse.
  Value z = hlo::sqrt(mul(hlo::log(tail), -2));
  auto series = [&](double from, double to, std::span<const double> c) {
    double low = 1 / to, high = 1 / from;
    Value t = add(mul(add(rdiv(z, 1), -low), 2 / (high - low)), -1);
    return hlo::subtract(z, chebyshev(t, c));
  };
  Value magnitude = pick(le(z, 8), series(2, 8, kNdtriNear), series(8, 40, kNdtriFar));
  magnitude = hlo::select(upper, magnitude, hlo::negate(magnitude));
  Value middle = mul(hlo::erf_inv(add(mul(p, 2), -1)), std::numbers::sqrt2);
  Value result = hlo::select(gt(tail, 0.13), middle, magnitude);
  result = hlo::select(eq(p, 0), full_like(p, -kInfinity), hlo::select(eq(p, 1), full_like(p, kInfinity), result));
  return hlo::select(hlo::bit_and(ge(p, 0), le(p, 1)), result, full_like(p, kNaN));
}

/// -x log x, 0 at 0, -inf below.
Value entropy(Value x) {
  Value inside = hlo::negate(hlo::multiply(x, hlo::log(x)));
  Value below = hlo::select(eq(x, 0), full_like(x, 0), full_like(x, -kInfinity));
  return hlo::select(is_nan(x), x, hlo::select(gt(x, 0), inside, below));
}

// ---- zeta and the derivatives of digamma

/// zeta for q > 0: CHLO's, or its leading terms for large q, where powers of q underflow.
Value zeta_of_positive(Value x, Value q) {
  std::string type = hlo::mlir_type(x.type());
  std::string text = "chlo.zeta " + hlo::ref(x) + ", " + hlo::ref(q) + " : " + type + ", " + type + " -> " + type;
  Value leading = hlo::divide(hlo::power(q, rsub(x, 1)), add(x, -1));
  Value large = hlo::add(leading, mul(hlo::power(q, hlo::negate(x)), 0.5));
  return hlo::select(gt(q, 1e6), large, x.builder().emit_one(text, x.type()));
}

/// Hurwitz zeta, the sum over k >= 0 of (k + q)^-x: infinite for x = 1 and at the poles q = 0, -1, ...; undefined for
/// x below 1 and for a power x of negative numbers that is not whole.
Value hurwitz_zeta(Value x, Value q) {
  // Terms of negative q are added one by one until the series for positive q applies; that is given up (NaN) below
  // -1e6, where it would take too long.
  std::vector<Value> init = {q, full_like(q, 0)};
  auto negative = [](Value q) { return hlo::bit_and(lt(q, 0), gt(q, -1e6)); };
  auto any_negative = [&](std::span<const Value> state) -> Values {
    return {hlo::reduce(negative(state[0]), hlo::Reducer::kOr, iota(state[0].rank()))};
  };
  auto step = [&](std::span<const Value> state) -> Values {
    Value active = negative(state[0]);
    Value term = hlo::power(state[0], hlo::negate(x));
    return {hlo::select(active, add(state[0], 1), state[0]), hlo::select(active, hlo::add(state[1], term), state[1])};
  };
  std::vector<Value> state = hlo::while_loop(init, any_negative, step);
  Value nan = full_like(x, kNaN), infinity = full_like(x, kInfinity);
  Value result = hlo::add(zeta_of_positive(x, state[0]), state[1]);
  result = hlo::select(lt(state[0], 0), nan, result);
  result = hlo::select(hlo::bit_and(lt(q, 0), ne(x, hlo::floor(x))), nan, result);
  result = hlo::select(hlo::bit_and(le(q, 0), eq(q, hlo::floor(q))), infinity, result);
  return hlo::select(eq(x, 1), infinity, hlo::select(lt(x, 1), nan, result));
}

/// zeta(2, x), reflected where the series would start far below zero.
Value trigamma(Value x) {
  Value reflect = lt(x, 0.5);
  Value right = zeta_of_positive(full_like(x, 2), hlo::select(reflect, rsub(x, 1), x));
  Value sine = hlo::sine(mul(x, kPi));
  return hlo::select(reflect, hlo::subtract(rdiv(square(sine), kPi * kPi), right), right);
}

/// polygamma(n, x)
Values polygamma(const OpCall& call) {
  int64_t n = call.integer(0);
  Value x = work_operand(call, 1);
  if (n == 0) return finish(call, hlo::digamma(x));
  if (n == 1) return finish(call, trigamma(x));
  double factor = std::tgamma(static_cast<double>(n) + 1) * (n % 2 ? 1 : -1);
  return finish(call, mul(hurwitz_zeta(full_like(x, static_cast<double>(n) + 1), x), factor));
}

// ---- the table

constexpr Row kRows[] = {
    {"i0", unary<modified_i0>},
    {"special_i0e", unary<scaled_i0>},
    {"special_i1", unary<modified_i1>},
    {"special_i1e", unary<scaled_i1>},
    {"special_modified_bessel_i0", unary<modified_i0>},
    {"special_modified_bessel_i1", unary<modified_i1>},
    {"special_modified_bessel_k0", unary<modified_k0<false>>},
    {"special_modified_bessel_k1", unary<modified_k1<false>>},
    {"special_scaled_modified_bessel_k0", unary<modified_k0<true>>},
    {"special_scaled_modified_bessel_k1", unary<modified_k1<true>>},
    {"special_bessel_j0", unary<bessel_j0>},
    {"special_bessel_j1", unary<bessel_j1>},
    {"special_bessel_y0", unary<bessel_y0>},
    {"special_bessel_y1", unary<bessel_y1>},
    {"special_spherical_bessel_j0", unary<spherical_bessel_j0>},
    {"special_airy_ai", unary<airy_ai>},
    {"special_erfcx", unary<scaled_erfc>},
    {"special_log_ndtr", unary<log_normal_cdf>},
    {"special_ndtri", unary<inverse_normal_cdf>},
    {"special_entr", unary<entropy>},
    {"special_zeta", binary<hurwitz_zeta>},
    {"special_zeta.self_scalar", binary<hurwitz_zeta>},
    {"special_zeta.other_scalar", binary<hurwitz_zeta>},
    {"polygamma", polygamma},
};

}  // namespace

std::span<const Row> elementwise_special_rows() { return kRows; }

}  // namespace tpu::lowering
