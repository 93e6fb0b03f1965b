// Operations of the CHLO dialect, which the compilers' front ends expand.

#include <limits>

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

Value chlo(const char* op, Value x) {
  check(is_floating(x.dtype()), op, "needs a floating-point operand", {x});
  std::string text = "chlo.";
  text += op;
  append_operands(text, {&x, 1});
  text += " : ";
  append_type(text, x.type());
  text += " -> ";
  append_type(text, x.type());
  return x.builder().emit_one(std::move(text), x.type());
}

// M. Giles, "Approximating the erfinv function" (2010), single precision: a polynomial in w - 2.5 for
// w = -log(1 - x^2) < 5 and one in sqrt(w) - 3 beyond. Forming 1 - x^2 as a product keeps the tails exact to
// 3e-7, where the compilers' own expansion for f32 is off by 6e-6.
Value erf_inv_f32(Value x) {
  constexpr double kCentre[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
  constexpr double kTail[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                              -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
  const auto splat = [&](double value) { return x.builder().constant(value, x.type()); };
  const Value one = splat(1);
  const Value w = negate(log(multiply(subtract(one, x), add(one, x))));
  const Value centre = compare(w, splat(5), Compare::kLt);
  const Value t = select(centre, subtract(w, splat(2.5)), subtract(sqrt(w), splat(3)));
  Value p = select(centre, splat(kCentre[0]), splat(kTail[0]));
  for (size_t i = 1; i < std::size(kCentre); ++i) {
    p = add(select(centre, splat(kCentre[i]), splat(kTail[i])), multiply(p, t));
  }
  const Value infinite = multiply(x, splat(std::numeric_limits<double>::infinity()));
  return select(compare(abs(x), one, Compare::kEq), infinite, multiply(p, x));
}

}  // namespace

Value erf(Value x) { return chlo("erf", x); }
Value erfc(Value x) { return chlo("erfc", x); }
Value erf_inv(Value x) {
  if (x.dtype() == DType::kF64) return chlo("erf_inv", x);
  check(is_floating(x.dtype()), "erf_inv", "needs a floating-point operand", {x});
  return convert(erf_inv_f32(convert(x, DType::kF32)), x.dtype());
}
Value lgamma(Value x) { return chlo("lgamma", x); }

Value digamma(Value x) {
  // The pole at zero has the sign that the zero has not; the compilers' expansion ignores it.
  const Value result = chlo("digamma", x);
  const Value zero = x.builder().constant(0.0, x.type());
  return select(compare(x, zero, Compare::kEq), divide(x.builder().constant(-1.0, x.type()), x), result);
}

std::vector<Value> top_k(Value x, int64_t k) {
  check(x.rank() >= 1 && k >= 0 && k <= x.dims().back(), "top_k", "k must be within the last dim", {x});
  TensorType values = x.type();
  values.dims.back() = k;
  const TensorType results[] = {values, {DType::kS32, values.dims}};
  std::string text = "chlo.top_k(";
  append_ref(text, x);
  text += ", k = " + std::to_string(k) + ") : ";
  append_type(text, x.type());
  text += " -> (";
  append_type(text, results[0]);
  text += ", ";
  append_type(text, results[1]);
  text += ")";
  return x.builder().emit(std::move(text), results);
}

}  // namespace tpu::stablehlo
