// Pointwise functions over values that StableHLO does not have.

#include <cmath>
#include <limits>
#include <string>

#include "lowering/elementwise.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

Value is_inf(Value x) {
  if (is_complex(x.dtype())) return hlo::bit_or(is_inf(hlo::real(x)), is_inf(hlo::imag(x)));
  if (!is_floating(x.dtype())) return ne(x, x);
  return eq(hlo::abs(x), std::numeric_limits<double>::infinity());
}

Value sign_bit(Value x) {
  if (!is_floating(x.dtype())) return is_signed_integer(x.dtype()) ? lt(x, 0.0) : ne(x, x);
  DType bits = byte_size(x.dtype()) == 8   ? DType::kS64
               : byte_size(x.dtype()) == 4 ? DType::kS32
               : byte_size(x.dtype()) == 2 ? DType::kS16
                                           : DType::kS8;
  return lt(hlo::bitcast_convert(x, bits), 0.0);
}

Value truncate(Value x) {
  if (!is_floating(x.dtype())) return x;
  return hlo::select(lt(x, 0.0), hlo::ceil(x), hlo::floor(x));
}

Value sign_of(Value x) {
  if (x.dtype() == DType::kBool) return x;
  Value positive = hlo::convert(gt(x, 0.0), x.dtype());
  if (is_unsigned_integer(x.dtype())) return positive;
  return hlo::subtract(positive, hlo::convert(lt(x, 0.0), x.dtype()));
}

Value copy_sign(Value x, Value sign) {
  Value magnitude = hlo::abs(x);
  return hlo::select(sign_bit(sign), hlo::negate(magnitude), magnitude);
}

namespace {

/// A one-operand CHLO function; every plugin's front end expands these into accurate StableHLO, complex
/// numbers included.
Value chlo(const char* name, Value x) {
  std::string type = hlo::mlir_type(x.type());
  return x.builder().emit_one(std::string("chlo.") + name + " " + hlo::ref(x) + " : " + type + " -> " + type, x.type());
}

}  // namespace

Value asin(Value x) { return chlo("asin", x); }
Value acos(Value x) { return chlo("acos", x); }
Value atan(Value x) {
  if (is_complex(x.dtype())) return chlo("atan", x);
  // chlo.atan is atan2(x, 1). XLA:CPU, when it computes that in place, reads some elements again after it has written
  // them, and gives wrong numbers above 1. Two varying operands take another path; pi / 2 - atan(1 / x) is as exact.
  Value length = hlo::abs(x), one = full_like(x, 1);
  Value near = hlo::atan2(hlo::minimum(length, one), hlo::maximum(length, one));
  return copy_sign(hlo::select(gt(length, 1), rsub(near, std::numbers::pi / 2), near), x);
}
Value asinh(Value x) { return chlo("asinh", x); }
Value acosh(Value x) { return chlo("acosh", x); }
Value atanh(Value x) { return chlo("atanh", x); }
Value sinh(Value x) {
  if (is_complex(x.dtype())) return chlo("sinh", x);
  // exp(x / 2) twice instead of exp(x): no overflow before the result itself overflows.
  Value length = hlo::abs(x), half = hlo::exponential(mul(length, 0.5)), minus_one = hlo::exponential_minus_one(length);
  Value near = mul(hlo::add(minus_one, hlo::divide(minus_one, add(minus_one, 1))), 0.5);
  Value far = hlo::subtract(hlo::multiply(mul(half, 0.5), half), hlo::divide(rdiv(half, 0.5), half));
  Value magnitude = hlo::select(lt(length, 1), near, far);
  return hlo::select(lt(x, 0), hlo::negate(magnitude), hlo::select(eq(x, 0), x, magnitude));
}

Value cosh(Value x) {
  if (is_complex(x.dtype())) return chlo("cosh", x);
  Value half = hlo::exponential(mul(hlo::abs(x), 0.5));
  return hlo::add(hlo::multiply(mul(half, 0.5), half), hlo::divide(rdiv(half, 0.5), half));
}

Value largest_finite(Value like) {
  double value = 0;
  switch (like.dtype()) {
    case DType::kF64:
      value = std::numeric_limits<double>::max();
      break;
    case DType::kF32:
      value = std::numeric_limits<float>::max();
      break;
    case DType::kBF16:
      value = std::ldexp(2 - std::ldexp(1.0, -7), 127);
      break;
    case DType::kF16:
      value = 65504;
      break;
    default:
      throw Error(Code::kInternal, "largest_finite: not a floating-point type");
  }
  return full_like(like, value);
}

Value exp2(Value x) {
  if (is_complex(x.dtype())) return hlo::exponential(mul(x, std::numbers::ln2));
  // exp(fraction log 2) times an exact power of two made of bits: exact for whole numbers and a tenth of the time
  // of power(2, x). The power comes in two halves, so that its exponent may leave the normal range.
  bool wide = x.dtype() == DType::kF64;
  DType bits_type = wide ? DType::kS64 : DType::kS32;
  int fraction_width = wide ? 52 : 23, bias = wide ? 1023 : 127;
  Value low = full_like(x, 2 - 2 * bias), high = full_like(x, 2 * bias);
  Value whole = hlo::maximum(hlo::minimum(hlo::round_nearest_even(x), high), low);
  Value near_one = hlo::exponential(mul(hlo::subtract(x, whole), std::numbers::ln2));
  Value exponent = hlo::convert(hlo::select(is_nan(x), full_like(x, 0), whole), bits_type);
  Value half = hlo::shift_right_arithmetic(exponent, full_like(exponent, 1));
  auto power_of_two = [&](Value n) {
    return hlo::bitcast_convert(hlo::shift_left(add(n, bias), full_like(n, fraction_width)), x.dtype());
  };
  Value scaled = hlo::multiply(near_one, power_of_two(half));
  return hlo::multiply(scaled, power_of_two(hlo::subtract(exponent, half)));
}

Value log_sigmoid(Value x) {
  Value tail = hlo::log_plus_one(hlo::exponential(hlo::negate(hlo::abs(x))));
  return hlo::subtract(hlo::minimum(x, full_like(x, 0)), tail);
}

Value softplus(Value x) { return hlo::negate(log_sigmoid(hlo::negate(x))); }

}  // namespace tpu::lowering
