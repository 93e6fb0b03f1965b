// Pointwise operators of one operand, comparisons, logic and selection; exports the whole family.

#include "lowering/elementwise.h"

#include <cmath>
#include <limits>

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- comparisons and logic

template <hlo::Compare direction>
Values compare(const OpCall& call) {
  DType dtype = call.promoted();
  return {hlo::compare(elementwise_operand(call, 0, dtype), elementwise_operand(call, 1, dtype), direction)};
}

/// Each operand becomes bool on its own: nonzero is true.
template <Binary f>
Values logical(const OpCall& call) {
  return {f(elementwise_operand(call, 0, DType::kBool), elementwise_operand(call, 1, DType::kBool))};
}

Values logical_not(const OpCall& call) { return {hlo::logical_not(call.operand(0, DType::kBool))}; }

/// where(condition, self, other)
Values where(const OpCall& call) {
  DType dtype = call.result_type().dtype;
  return {hlo::select(elementwise_operand(call, 0, DType::kBool), elementwise_operand(call, 1, dtype),
                      elementwise_operand(call, 2, dtype))};
}

// ---- one operand

Value negate(Value x) { return hlo::negate(x); }

Value absolute(Value x) {
  bool is_signed = !is_unsigned_integer(x.dtype()) && x.dtype() != DType::kBool;
  return is_signed ? hlo::abs(x) : x;
}

/// x / |x|, 0 for 0.
Value complex_sign(Value x) {
  if (!is_complex(x.dtype())) return sign_of(x);
  Value length = hlo::abs(x);
  Value zero = eq(length, 0.0);
  Value divisor = hlo::select(zero, full_like(length, 1), length);
  return hlo::complex(hlo::divide(hlo::real(x), divisor), hlo::divide(hlo::imag(x), divisor));
}

template <Unary f>
Value floats_only(Value x) {  // rounding: the identity on integers
  return is_floating(x.dtype()) ? f(x) : x;
}

Value fraction(Value x) { return hlo::subtract(x, truncate(x)); }
Value reciprocal(Value x) { return rdiv(x, 1); }
Value log2(Value x) { return mul(hlo::log(x), std::numbers::log2e); }
Value log10(Value x) { return mul(hlo::log(x), std::numbers::log10e); }
Value degrees_to_radians(Value x) { return mul(x, std::numbers::pi / 180); }
Value radians_to_degrees(Value x) { return mul(x, 180 / std::numbers::pi); }

Value sinc(Value x) {
  Value scaled = mul(x, std::numbers::pi);
  return hlo::select(eq(x, full_like(x, 0)), full_like(x, 1), hlo::divide(hlo::sine(scaled), scaled));
}

/// Argument of a complex number; 0 or pi for a real one, NaN for NaN.
Value angle(Value x) {
  if (is_complex(x.dtype())) return hlo::atan2(hlo::imag(x), hlo::real(x));
  if (!is_floating(x.dtype())) x = hlo::convert(x, DType::kF32);
  Value result = hlo::select(lt(x, 0.0), full_like(x, std::numbers::pi), full_like(x, 0));
  return hlo::select(is_nan(x), x, result);
}

Value is_positive_inf(Value x) { return is_floating(x.dtype()) ? eq(x, kInfinity) : ne(x, x); }
Value is_negative_inf(Value x) { return is_floating(x.dtype()) ? eq(x, -kInfinity) : ne(x, x); }

Value conjugate(Value x) { return is_complex(x.dtype()) ? hlo::complex(hlo::real(x), hlo::negate(hlo::imag(x))) : x; }

/// round(x * 10^decimals) / 10^decimals, with the power on the other side for negative decimals.
Values round_decimals(const OpCall& call) {
  Value x = work_operand(call, 0);
  int64_t decimals = call.integer(1);
  if (!is_floating(x.dtype()) || decimals == 0) return finish(call, floats_only<hlo::round_nearest_even>(x));
  double power = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  if (decimals > 0) return finish(call, div(hlo::round_nearest_even(mul(x, power)), power));
  return finish(call, mul(hlo::round_nearest_even(div(x, power)), power));
}

/// log(x / (1 - x)), with x limited to [eps, 1 - eps] when eps is given.
Values logit(const OpCall& call) {
  Value x = work_operand(call, 0);
  if (call.has(1)) {
    Value eps = work_scalar(call, 1, x);
    Value upper = rsub(eps, 1);
    x = hlo::select(lt(x, eps), eps, hlo::select(gt(x, upper), upper, x));
  }
  return finish(call, hlo::log(hlo::divide(x, rsub(x, 1))));
}

/// nan_to_num(x, nan, posinf, neginf): by default 0 and the dtype's largest finite values.
Values nan_to_num(const OpCall& call) {
  Value x = call.tensor(0);
  if (!is_floating(x.dtype()) && !is_complex(x.dtype())) return {x};
  auto replace = [&](Value part) {
    Value positive = call.has(2) ? work_scalar(call, 2, part) : largest_finite(part);
    Value negative = call.has(3) ? work_scalar(call, 3, part) : hlo::negate(largest_finite(part));
    Value nan = call.has(1) ? work_scalar(call, 1, part) : full_like(part, 0);
    Value finite = hlo::select(eq(part, kInfinity), positive, hlo::select(eq(part, -kInfinity), negative, part));
    return hlo::select(is_nan(part), nan, finite);
  };
  if (!is_complex(x.dtype())) return {replace(x)};
  return {hlo::complex(replace(hlo::real(x)), replace(hlo::imag(x)))};
}

/// frexp(x) -> mantissa in [0.5, 1), int32 exponent. On the bits, because the device may flush subnormals.
Values frexp(const OpCall& call) {
  Value x = hlo::convert(call.tensor(0), compute_type(call.dtype(0)));
  bool wide = x.dtype() == DType::kF64;
  DType bits_type = wide ? DType::kS64 : DType::kS32;
  int width = wide ? 64 : 32, fraction_width = wide ? 52 : 23;
  int64_t bias = wide ? 1022 : 126, fraction_mask = (int64_t{1} << fraction_width) - 1;
  Value bits = hlo::bitcast_convert(x, bits_type);
  auto constant = [&](int64_t value) { return bits.builder().constant(value, bits.type()); };
  Value sign = hlo::bit_and(bits, constant(std::numeric_limits<int64_t>::min() >> (64 - width)));
  Value fraction = hlo::bit_and(bits, constant(fraction_mask));
  Value magnitude = hlo::bit_xor(bits, sign);
  Value exponent = hlo::shift_right_logical(magnitude, constant(fraction_width));
  // A subnormal's fraction moves up until its leading one falls off.
  Value subnormal = eq(exponent, 0.0);
  Value shift = hlo::subtract(hlo::count_leading_zeros(fraction), constant(width - fraction_width - 1));
  Value moved =
      hlo::bit_and(hlo::shift_left(fraction, hlo::select(subnormal, shift, constant(0))), constant(fraction_mask));
  Value mantissa = hlo::bit_or(hlo::bit_or(sign, constant(bias << fraction_width)), moved);
  exponent = hlo::select(subnormal, hlo::subtract(constant(1 - bias), shift), hlo::subtract(exponent, constant(bias)));
  // Zero, infinity and NaN are their own mantissa.
  Value special = hlo::bit_or(eq(magnitude, 0.0), ge(magnitude, constant((bias * 2 + 3) << fraction_width)));
  return {hlo::convert(hlo::select(special, x, hlo::bitcast_convert(mantissa, x.dtype())), call.result_type(0).dtype),
          hlo::convert(hlo::select(special, constant(0), exponent), call.result_type(1).dtype)};
}

/// x * 2^n
Value load_exponent(Value x, Value n) { return hlo::multiply(x, exp2(n)); }

// ---- complex numbers from parts

Value complex_from_polar(Value length, Value angle) {
  return hlo::complex(hlo::multiply(length, hlo::cosine(angle)), hlo::multiply(length, hlo::sine(angle)));
}

/// Both operands in the real type of the complex result.
template <Binary f>
Values complex_from_parts(const OpCall& call) {
  DType dtype = real_type(call.result_type().dtype);
  for (size_t i : {size_t{0}, size_t{1}}) {
    if (call.dtype(i) == dtype) continue;
    throw Error(Code::kInvalidArgument,
                "Expected both parts of a complex number to have the same scalar type, but got " +
                    std::string(torch_name(call.dtype(0))) + " and " + std::string(torch_name(call.dtype(1))));
  }
  return {f(elementwise_operand(call, 0, dtype), elementwise_operand(call, 1, dtype))};
}

// ---- the table

constexpr Row kRows[] = {
    {"eq.Tensor", compare<hlo::Compare::kEq>},
    {"eq.Scalar", compare<hlo::Compare::kEq>},
    {"ne.Tensor", compare<hlo::Compare::kNe>},
    {"ne.Scalar", compare<hlo::Compare::kNe>},
    {"lt.Tensor", compare<hlo::Compare::kLt>},
    {"lt.Scalar", compare<hlo::Compare::kLt>},
    {"le.Tensor", compare<hlo::Compare::kLe>},
    {"le.Scalar", compare<hlo::Compare::kLe>},
    {"gt.Tensor", compare<hlo::Compare::kGt>},
    {"gt.Scalar", compare<hlo::Compare::kGt>},
    {"ge.Tensor", compare<hlo::Compare::kGe>},
    {"ge.Scalar", compare<hlo::Compare::kGe>},
    {"logical_and", logical<hlo::bit_and>},
    {"logical_or", logical<hlo::bit_or>},
    {"logical_xor", logical<hlo::bit_xor>},
    {"logical_not", logical_not},
    {"where.self", where},

    {"isnan", unary_of_input<is_nan>},
    {"isinf", unary_of_input<is_inf>},
    {"isposinf", unary_of_input<is_positive_inf>},
    {"isneginf", unary_of_input<is_negative_inf>},
    {"signbit", unary_of_input<sign_bit>},
    {"nan_to_num", nan_to_num},

    {"abs", unary_of_input<absolute>},
    {"neg", unary<negate>},
    {"sign", unary<sign_of>},
    {"sgn", unary<complex_sign>},
    {"bitwise_not", unary<hlo::logical_not>},
    {"floor", unary<floats_only<hlo::floor>>},
    {"ceil", unary<floats_only<hlo::ceil>>},
    {"round", unary<floats_only<hlo::round_nearest_even>>},
    {"round.decimals", round_decimals},
    {"trunc", unary<truncate>},
    {"frac", unary<fraction>},

    {"reciprocal", unary<reciprocal>},
    {"sqrt", unary<hlo::sqrt>},
    {"rsqrt", unary<hlo::rsqrt>},
    {"exp", unary<hlo::exponential>},
    {"exp2", unary<exp2>},
    {"expm1", unary<hlo::exponential_minus_one>},
    {"log", unary<hlo::log>},
    {"log2", unary<log2>},
    {"log10", unary<log10>},
    {"log1p", unary<hlo::log_plus_one>},
    {"sin", unary<hlo::sine>},
    {"cos", unary<hlo::cosine>},
    {"tan", unary<hlo::tan>},
    {"sinh", unary<sinh>},
    {"cosh", unary<cosh>},
    {"tanh", unary<hlo::tanh>},
    {"asin", unary<asin>},
    {"acos", unary<acos>},
    {"atan", unary<atan>},
    {"asinh", unary<asinh>},
    {"acosh", unary<acosh>},
    {"atanh", unary<atanh>},
    {"sinc", unary<sinc>},
    {"deg2rad", unary<degrees_to_radians>},
    {"rad2deg", unary<radians_to_degrees>},
    {"erf", unary<hlo::erf>},
    {"erfc", unary<hlo::erfc>},
    {"erfinv", unary<hlo::erf_inv>},
    {"lgamma", unary<hlo::lgamma>},
    {"digamma", unary<hlo::digamma>},
    {"logit", logit},

    {"frexp.Tensor", frexp},
    {"ldexp.Tensor", binary<load_exponent>},

    {"angle", unary_of_input<angle>},
    {"_conj_physical", unary<conjugate>},
    {.name = "complex", .lower = complex_from_parts<hlo::complex>, .exact_out = true},
    {.name = "polar", .lower = complex_from_parts<complex_from_polar>, .exact_out = true},
};

}  // namespace

std::span<const Row> elementwise_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    for (auto part : {elementwise_arithmetic_rows(), elementwise_special_rows(), elementwise_gamma_rows(),
                      elementwise_implicit_rows(), elementwise_polynomial_rows()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
