// Orthogonal polynomials special_*_polynomial_*(x, n): three-term recurrences over degrees held in a tensor. Inside
// (-1, 1) Chebyshev polynomials of higher degree use their trigonometric form, as PyTorch's kernels do.

#include <limits>

#include "lowering/elementwise.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

// A whole number in float32 that an int32 holds.
constexpr double kMostDegrees = 2147483520;

/// P(k + 1) from P(k) = `current` and P(k - 1) = `previous`, for k >= 1 spread over the result.
using Recurrence = Value (*)(Value x, Value k, Value current, Value previous);

/// P(n) with P(0) = 1 and P(1) = `first`; 0 for negative n.
Value recur(Value x, Value n, Value first, Recurrence next) {
  Value one = full_like(x, 1);
  // Counted in integers: a float32 stops growing at 2^24.
  const Value degrees = hlo::convert(hlo::minimum(n, full_like(n, kMostDegrees)), DType::kS32);
  std::vector<Value> init = {scalar(x.builder(), int64_t{1}, DType::kS32), one, first};
  auto below_degree = [&](Value k) { return lt(broadcast_to(k, n.dims()), degrees); };
  auto unfinished = [&](std::span<const Value> state) -> Values {
    return {hlo::reduce(below_degree(state[0]), hlo::Reducer::kOr, iota(n.rank()))};
  };
  auto step = [&](std::span<const Value> state) -> Values {
    Value k = broadcast_to(hlo::convert(state[0], x.dtype()), x.dims()), active = below_degree(state[0]);
    Value following = next(x, k, state[2], state[1]);
    return {add(state[0], 1), hlo::select(active, state[2], state[1]), hlo::select(active, following, state[2])};
  };
  Value result = hlo::while_loop(init, unfinished, step)[2];
  result = hlo::select(eq(n, 0), one, result);
  return hlo::select(lt(n, 0), full_like(x, 0), result);
}

Value twice_x_minus(Value x, Value, Value current, Value previous) {
  return hlo::subtract(hlo::multiply(mul(x, 2), current), previous);
}

Value is_even(Value n) { return eq(hlo::remainder(n, full_like(n, 2)), 0); }

/// Values at x = 1 and x = -1, where the trigonometric forms divide by zero.
Value at_ends(Value x, Value n, Value result, Value at_one, Value at_minus_one_even) {
  Value at_minus_one = hlo::select(is_even(n), at_minus_one_even, hlo::negate(at_minus_one_even));
  result = hlo::select(eq(x, 1), at_one, hlo::select(eq(x, -1), at_minus_one, result));
  return hlo::select(lt(n, 0), full_like(x, 0), result);
}

/// `closed_form` for degrees above `degree` inside (-1, 1), else `result`.
Value high_degree(Value x, Value n, double degree, Value result, Value closed_form) {
  return hlo::select(hlo::bit_and(gt(n, degree), lt(hlo::abs(x), 1)), closed_form, result);
}

Value chebyshev_t(Value x, Value n) {
  Value result = recur(x, n, x, twice_x_minus);
  result = high_degree(x, n, 6, result, hlo::cosine(hlo::multiply(n, acos(x))));
  Value one = full_like(x, 1);
  return at_ends(x, n, result, one, one);
}

Value chebyshev_u(Value x, Value n) {
  Value result = recur(x, n, mul(x, 2), twice_x_minus), angle = acos(x), next = add(n, 1);
  Value quotient = hlo::divide(hlo::sine(hlo::multiply(next, angle)), hlo::sine(angle));
  return at_ends(x, n, high_degree(x, n, 8, result, quotient), next, next);
}

Value chebyshev_v(Value x, Value n) {
  Value result = recur(x, n, add(mul(x, 2), -1), twice_x_minus), angle = acos(x);
  Value quotient = hlo::divide(hlo::cosine(hlo::multiply(add(n, 0.5), angle)), hlo::cosine(mul(angle, 0.5)));
  return at_ends(x, n, high_degree(x, n, 8, result, quotient), full_like(x, 1), add(mul(n, 2), 1));
}

Value chebyshev_w(Value x, Value n) {
  Value result = recur(x, n, add(mul(x, 2), 1), twice_x_minus), angle = acos(x);
  Value quotient = hlo::divide(hlo::sine(hlo::multiply(add(n, 0.5), angle)), hlo::sine(mul(angle, 0.5)));
  return at_ends(x, n, high_degree(x, n, 8, result, quotient), add(mul(n, 2), 1), full_like(x, 1));
}

/// Polynomials on [0, 1].
template <Binary f>
Value shifted(Value x, Value n) {
  return f(add(mul(x, 2), -1), n);
}

Value hermite_h(Value x, Value n) {
  return recur(x, n, mul(x, 2), [](Value x, Value k, Value current, Value previous) {
    return hlo::subtract(hlo::multiply(mul(x, 2), current), hlo::multiply(mul(k, 2), previous));
  });
}

Value hermite_he(Value x, Value n) {
  return recur(x, n, x, [](Value x, Value k, Value current, Value previous) {
    return hlo::subtract(hlo::multiply(x, current), hlo::multiply(k, previous));
  });
}

Value laguerre_l(Value x, Value n) {
  Value result = recur(x, n, rsub(x, 1), [](Value x, Value k, Value current, Value previous) {
    Value factor = hlo::add(mul(k, 2), rsub(x, 1));
    return hlo::divide(hlo::subtract(hlo::multiply(factor, current), hlo::multiply(k, previous)), add(k, 1));
  });
  return hlo::select(hlo::bit_and(eq(x, 0), ge(n, 0)), full_like(x, 1), result);
}

Value legendre_p(Value x, Value n) {
  Value result = recur(x, n, x, [](Value x, Value k, Value current, Value previous) {
    Value factor = hlo::multiply(add(mul(k, 2), 1), x);
    return hlo::divide(hlo::subtract(hlo::multiply(factor, current), hlo::multiply(k, previous)), add(k, 1));
  });
  Value one = full_like(x, 1);
  return at_ends(x, n, result, one, one);
}

/// The degree counts as a whole number, rounded towards zero; one that is not finite counts as negative, as on the CPU.
template <Binary f>
Values polynomial(const OpCall& call) {
  const Value n = work_operand(call, 1);
  const Value degree = hlo::select(hlo::is_finite(n), truncate(n), full_like(n, -1));
  return finish(call, f(work_operand(call, 0), degree));
}

// ---- the table

constexpr Row kRows[] = {
    {"special_chebyshev_polynomial_t", polynomial<chebyshev_t>},
    {"special_chebyshev_polynomial_t.n_scalar", polynomial<chebyshev_t>},
    {"special_chebyshev_polynomial_t.x_scalar", polynomial<chebyshev_t>},
    {"special_chebyshev_polynomial_u", polynomial<chebyshev_u>},
    {"special_chebyshev_polynomial_u.n_scalar", polynomial<chebyshev_u>},
    {"special_chebyshev_polynomial_u.x_scalar", polynomial<chebyshev_u>},
    {"special_chebyshev_polynomial_v", polynomial<chebyshev_v>},
    {"special_chebyshev_polynomial_v.n_scalar", polynomial<chebyshev_v>},
    {"special_chebyshev_polynomial_v.x_scalar", polynomial<chebyshev_v>},
    {"special_chebyshev_polynomial_w", polynomial<chebyshev_w>},
    {"special_chebyshev_polynomial_w.n_scalar", polynomial<chebyshev_w>},
    {"special_chebyshev_polynomial_w.x_scalar", polynomial<chebyshev_w>},
    {"special_shifted_chebyshev_polynomial_t", polynomial<shifted<chebyshev_t>>},
    {"special_shifted_chebyshev_polynomial_t.n_scalar", polynomial<shifted<chebyshev_t>>},
    {"special_shifted_chebyshev_polynomial_t.x_scalar", polynomial<shifted<chebyshev_t>>},
    {"special_shifted_chebyshev_polynomial_u", polynomial<shifted<chebyshev_u>>},
    {"special_shifted_chebyshev_polynomial_u.n_scalar", polynomial<shifted<chebyshev_u>>},
    {"special_shifted_chebyshev_polynomial_u.x_scalar", polynomial<shifted<chebyshev_u>>},
    {"special_shifted_chebyshev_polynomial_v", polynomial<shifted<chebyshev_v>>},
    {"special_shifted_chebyshev_polynomial_v.n_scalar", polynomial<shifted<chebyshev_v>>},
    {"special_shifted_chebyshev_polynomial_v.x_scalar", polynomial<shifted<chebyshev_v>>},
    {"special_shifted_chebyshev_polynomial_w", polynomial<shifted<chebyshev_w>>},
    {"special_shifted_chebyshev_polynomial_w.n_scalar", polynomial<shifted<chebyshev_w>>},
    {"special_shifted_chebyshev_polynomial_w.x_scalar", polynomial<shifted<chebyshev_w>>},
    {"special_hermite_polynomial_h", polynomial<hermite_h>},
    {"special_hermite_polynomial_h.n_scalar", polynomial<hermite_h>},
    {"special_hermite_polynomial_h.x_scalar", polynomial<hermite_h>},
    {"special_hermite_polynomial_he", polynomial<hermite_he>},
    {"special_hermite_polynomial_he.n_scalar", polynomial<hermite_he>},
    {"special_hermite_polynomial_he.x_scalar", polynomial<hermite_he>},
    {"special_laguerre_polynomial_l", polynomial<laguerre_l>},
    {"special_laguerre_polynomial_l.n_scalar", polynomial<laguerre_l>},
    {"special_laguerre_polynomial_l.x_scalar", polynomial<laguerre_l>},
    {"special_legendre_polynomial_p", polynomial<legendre_p>},
    {"special_legendre_polynomial_p.n_scalar", polynomial<legendre_p>},
    {"special_legendre_polynomial_p.x_scalar", polynomial<legendre_p>},
};

}  // namespace

std::span<const Row> elementwise_polynomial_rows() { return kRows; }

}  // namespace tpu::lowering
