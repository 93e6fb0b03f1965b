// Arithmetic with PyTorch's integer, rounding and NaN rules: add ... pow, shifts, gcd, clamp, lerp.

#include <limits>

#include "lowering/elementwise.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

// ---- sums and products

/// b scaled by the Scalar argument `alpha`; untouched when that is known to be 1.
Value scaled(const OpCall& call, Value b, size_t alpha) {
  if (known_equals(call, alpha, 1)) return b;
  return hlo::multiply(b, rounded_operand(call, alpha));
}

/// PyTorch's checks of the `alpha` (argument 2) of add and sub.
void check_alpha(const OpCall& call) {
  const DType alpha = call.dtype(2), result = call.promoted();
  if (alpha == DType::kBool && result != DType::kBool) {
    throw Error(Code::kInvalidArgument, "Boolean alpha only supported for Boolean results.");
  }
  if (is_integral_or_bool(result) && (is_floating(alpha) || is_complex(alpha))) {
    throw Error(Code::kInvalidArgument,
                "For integral input tensors, argument alpha must not be a floating point number.");
  }
}

Values add_scaled(const OpCall& call) {
  check_alpha(call);
  return finish(call, hlo::add(rounded_operand(call, 0), scaled(call, rounded_operand(call, 1), 2)));
}

void refuse_bool(const OpCall& call) {
  if (call.dtype(0) != DType::kBool && call.dtype(1) != DType::kBool) return;
  throw Error(Code::kInvalidArgument,
              "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
              "use the `~` or `logical_not()` operator instead.");
}

Values subtract_scaled(const OpCall& call) {
  refuse_bool(call);
  check_alpha(call);
  return finish(call, hlo::subtract(rounded_operand(call, 0), scaled(call, rounded_operand(call, 1), 2)));
}

Values reverse_subtract_scaled(const OpCall& call) {
  refuse_bool(call);
  check_alpha(call);
  return finish(call, hlo::subtract(rounded_operand(call, 1), scaled(call, rounded_operand(call, 0), 2)));
}

/// The second operand of addcmul and addcdiv times their number, which PyTorch does not round to a half type first.
Value scaled_factor(const OpCall& call) {
  if (known_equals(call, 3, 1)) return work_operand(call, 1);
  return hlo::multiply(work_operand(call, 1), work_operand(call, 3));
}

Values add_product(const OpCall& call) {
  Value factor = scaled_factor(call);
  return finish(call, hlo::add(work_operand(call, 0), hlo::multiply(factor, work_operand(call, 2))));
}

Values add_quotient(const OpCall& call) {
  Value factor = scaled_factor(call);
  return finish(call, hlo::add(work_operand(call, 0), divide_exactly(factor, work_operand(call, 2))));
}

/// start + weight * (end - start), taken from the nearer end so that weight 1 gives `end` exactly.
Value lerp(Value start, Value end, Value weight) {
  Value difference = hlo::subtract(end, start);
  const auto* from = weight.builder().find_origin(weight, stablehlo::Builder::Origin::Op::kBroadcast);
  if (from != nullptr && from->operand.rank() == 0) {
    // One choice for all elements, with the same roundings: end - d * (1 - w) is end + d * (w - 1).
    Value number = from->operand;
    Value near = lt(hlo::abs(number), 0.5);
    Value factor = hlo::select(near, number, add(number, -1.0));
    return hlo::add(hlo::select(near, start, end), hlo::multiply(broadcast_to(factor, start.dims()), difference));
  }
  Value near_start = hlo::add(start, hlo::multiply(weight, difference));
  Value one_minus = hlo::subtract(full_like(weight, 1), weight);
  Value near_end = hlo::subtract(end, hlo::multiply(difference, one_minus));
  return hlo::select(lt(hlo::abs(weight), 0.5), near_start, near_end);
}

// ---- division

/// Raises PyTorch's error at run time when an integer divisor (argument `i`) holds a zero.
void check_divisor(const OpCall& call, size_t i) {
  if (call.result_type().numel() == 0) return;
  if (auto known = call.known(i)) {
    if (known->as_double() == 0) throw Error(Code::kInternal, "ZeroDivisionError");
    return;
  }
  Value divisor = call.operand(i, call.promoted());
  Value zero = eq(divisor, full_like(divisor, 0));
  call.check(hlo::reduce(zero, hlo::Reducer::kOr, iota(zero.rank())), Code::kInternal, "ZeroDivisionError");
}

/// Remainders have the dividend's sign; where that differs from the divisor's sign the floored quotient is one less.
Value signs_differ(Value rest, Value divisor) {
  return hlo::bit_and(ne(rest, 0.0), ne(lt(rest, 0.0), lt(divisor, 0.0)));
}

Value floor_divide_integers(Value a, Value b) {
  Value quotient = hlo::divide(a, b);
  if (!is_signed_integer(a.dtype())) return quotient;
  return hlo::select(signs_differ(hlo::remainder(a, b), b), add(quotient, -1), quotient);
}

/// Python's `//`: from the exact remainder, so that it agrees with `%` where a / b rounds up to an integer.
Value floor_divide_floats(Value a, Value b) {
  Value rest = hlo::remainder(a, b);
  Value quotient = divide_exactly(hlo::subtract(a, rest), b);
  quotient = hlo::select(signs_differ(rest, b), add(quotient, -1), quotient);
  Value floored = hlo::floor(quotient);
  floored = hlo::select(gt(hlo::subtract(quotient, floored), 0.5), add(floored, 1), floored);
  Value plain = divide_exactly(a, b);
  Value zero = copy_sign(full_like(a, 0), plain);
  return hlo::select(eq(b, 0.0), plain, hlo::select(eq(quotient, 0.0), zero, floored));
}

Values true_divide(const OpCall& call) { return binary_wide<divide_exactly>(call); }

Values trunc_divide(const OpCall& call) {
  if (is_integral_or_bool(call.promoted())) {
    check_divisor(call, 1);
    return binary_exact<hlo::divide>(call);
  }
  // The quotient is rounded to the result's dtype first, so a half's 17.99 truncates to 18.
  Value quotient = divide_exactly(exact_operand(call, 0), exact_operand(call, 1));
  Value rounded = hlo::convert(hlo::convert(quotient, call.result_type().dtype), quotient.dtype());
  return finish(call, truncate(rounded));
}

Values floor_divide(const OpCall& call) {
  if (is_integral_or_bool(call.promoted())) {
    check_divisor(call, 1);
    return binary_exact<floor_divide_integers>(call);
  }
  return binary_exact<floor_divide_floats>(call);
}

/// div with rounding_mode None, "trunc" or "floor".
Values divide_mode(const OpCall& call) {
  if (call.is_none(2)) return true_divide(call);
  return call.string(2) == "trunc" ? trunc_divide(call) : floor_divide(call);
}

Value floored_remainder(Value a, Value b) {
  Value rest = hlo::remainder(a, b);
  if (is_unsigned_integer(a.dtype())) return rest;
  return hlo::select(signs_differ(rest, b), hlo::add(rest, b), rest);
}

template <Binary f>
Values modulo(const OpCall& call) {
  if (is_integral_or_bool(call.promoted())) check_divisor(call, 1);
  return binary_exact<f>(call);
}

// ---- powers

/// base ** exponent for integers, wrapping; a negative exponent gives 0 except for bases 1 and -1.
Value integer_power(Value base, Value exponent) {
  if (base.dtype() == DType::kBool) return hlo::bit_or(base, hlo::logical_not(exponent));
  TensorType type = base.type();
  Value one = full_like(base, 1);
  bool is_signed = is_signed_integer(type.dtype);
  // Repeated squaring over the exponent's bits, until the largest exponent of all elements has none left.
  Value left = is_signed ? hlo::maximum(exponent, full_like(exponent, 0)) : exponent;
  std::vector<Value> init = {one, base, left};
  auto any_left = [](std::span<const Value> state) -> Values {
    return {hlo::reduce(ne(state[2], 0.0), hlo::Reducer::kOr, iota(state[2].rank()))};
  };
  auto square_step = [](std::span<const Value> state) -> Values {
    Value ones = full_like(state[2], 1);
    Value odd = eq(hlo::bit_and(state[2], ones), 1.0);
    return {hlo::select(odd, hlo::multiply(state[0], state[1]), state[0]), hlo::multiply(state[1], state[1]),
            hlo::shift_right_logical(state[2], ones)};
  };
  Value result = hlo::while_loop(init, any_left, square_step)[0];
  if (!is_signed) return result;
  Value odd = eq(hlo::bit_and(exponent, one), 1.0);
  Value of_minus_one = hlo::select(odd, base, one);
  Value inverse = hlo::select(eq(base, 1.0), one, hlo::select(eq(base, -1.0), of_minus_one, full_like(base, 0)));
  return hlo::select(lt(exponent, 0.0), inverse, result);
}

/// base ** n for a small known n >= 0 by repeated squaring.
Value power_of_known(Value base, int64_t n) {
  Value result;
  for (Value square = base; n > 0; n >>= 1) {
    if (n & 1) result = result.defined() ? hlo::multiply(result, square) : square;
    if (n > 1) square = hlo::multiply(square, square);
  }
  return result.defined() ? result : full_like(base, 1);
}

/// The exponents that PyTorch's own kernel treats apart; an undefined value for all others.
Value special_power(Value base, double exponent) {
  if (exponent == 0) return full_like(base, 1);
  if (exponent == 1) return base;
  if (exponent == 2 || exponent == 3) return power_of_known(base, static_cast<int64_t>(exponent));
  if (exponent == 0.5) return hlo::sqrt(base);
  if (exponent == -0.5) return rdiv(hlo::sqrt(base), 1);
  if (exponent == -1) return rdiv(base, 1);
  if (exponent == -2) return rdiv(square(base), 1);
  return Value();
}

Values power_scalar_exponent(const OpCall& call) {
  Value base = work_operand(call, 0);
  auto known = call.known(1);
  bool integral = is_integral_or_bool(base.dtype());
  if (known && known->kind != Scalar::Kind::kComplex) {
    if (integral && known->as_int() >= 0) return finish(call, power_of_known(base, known->as_int()));
    if (Value special = integral ? Value() : special_power(base, known->as_double()); special.defined())
      return finish(call, special);
  }
  if (integral) {
    const char* const negative = "Integers to negative integer powers are not allowed.";
    if (known && known->as_int() < 0) throw Error(Code::kInvalidArgument, negative);
    if (!known) call.check(lt(call.operand(1, DType::kS64), 0.0), Code::kInvalidArgument, negative);
  }
  Value exponent = rounded_operand(call, 1);
  if (integral) return finish(call, integer_power(base, exponent));
  Value result = hlo::power(base, exponent);
  if (known || is_complex(base.dtype())) return finish(call, result);
  // Also as an operand these are roots to PyTorch, which differ from powers at -0 and -inf.
  Value root = hlo::sqrt(base);
  result = hlo::select(eq(exponent, -0.5), rdiv(root, 1), result);
  return finish(call, hlo::select(eq(exponent, 0.5), root, result));
}

Values power(const OpCall& call) {
  if (call.dtype(0) == DType::kBool && call.dtype(1) == DType::kBool) {
    throw Error(Code::kNotImplemented, "\"pow\" not implemented for 'Bool'");
  }
  Value base = rounded_operand(call, 0), exponent = rounded_operand(call, 1);
  return finish(call, is_integral_or_bool(base.dtype()) ? integer_power(base, exponent) : hlo::power(base, exponent));
}

// ---- extrema

/// Functions of an order, which complex numbers do not have.
template <Binary f>
Values binary_ordered(const OpCall& call) {
  if (is_complex(call.promoted())) {
    throw Error(Code::kInvalidArgument, std::string(call.name()) + " not implemented for complex tensors.");
  }
  return binary_native<f>(call);
}

Value float_maximum(Value a, Value b) {
  if (!is_floating(a.dtype())) return hlo::maximum(a, b);
  return hlo::select(is_nan(a), b, hlo::select(is_nan(b), a, hlo::maximum(a, b)));
}

Value float_minimum(Value a, Value b) {
  if (!is_floating(a.dtype())) return hlo::minimum(a, b);
  return hlo::select(is_nan(a), b, hlo::select(is_nan(b), a, hlo::minimum(a, b)));
}

/// Both bounds optional; NaN anywhere gives NaN, and an upper bound below the lower one wins, as in PyTorch.
Values clamp(const OpCall& call) {
  DType dtype = call.result_type().dtype;
  Value x = elementwise_operand(call, 0, dtype);
  if (call.has(1)) x = hlo::maximum(x, elementwise_operand(call, 1, dtype));
  if (call.size() > 2 && call.has(2)) x = hlo::minimum(x, elementwise_operand(call, 2, dtype));
  return {x};
}

Value heaviside(Value x, Value at_zero) {
  return hlo::select(eq(x, 0.0), at_zero, hlo::convert(gt(x, 0.0), x.dtype()));
}

Value hypotenuse(Value a, Value b) {
  a = hlo::abs(a);
  b = hlo::abs(b);
  Value larger = hlo::maximum(a, b), ratio = hlo::divide(hlo::minimum(a, b), larger);
  Value length = hlo::multiply(larger, hlo::sqrt(add(square(ratio), 1)));
  length = hlo::select(eq(larger, 0.0), larger, length);
  // An infinite side wins over NaN.
  Value infinite = hlo::bit_or(is_inf(a), is_inf(b));
  return hlo::select(infinite, full_like(a, std::numeric_limits<double>::infinity()), length);
}

// ---- logarithms of two operands

/// x * f(y), 0 where x is 0, NaN where y is.
template <Unary f>
Value x_times_log(Value x, Value y) {
  Value product = hlo::multiply(x, f(y));
  return hlo::select(is_nan(y), y, hlo::select(eq(x, 0.0), full_like(x, 0), product));
}

/// log(exp(a) + exp(b)) with the larger one factored out.
Value log_add_exp(Value a, Value b) {
  if (is_complex(a.dtype())) {
    Value first = ge(hlo::real(a), hlo::real(b));
    Value larger = hlo::select(first, a, b), smaller = hlo::select(first, b, a);
    return hlo::add(larger, hlo::log_plus_one(hlo::exponential(hlo::subtract(smaller, larger))));
  }
  Value larger = hlo::maximum(a, b);
  Value smooth = hlo::add(larger, hlo::log_plus_one(hlo::exponential(hlo::negate(hlo::abs(hlo::subtract(a, b))))));
  return hlo::select(hlo::bit_and(is_inf(a), eq(a, b)), a, smooth);
}

Value log_add_exp2(Value a, Value b) {
  Value larger = hlo::maximum(a, b);
  Value smooth = hlo::log_plus_one(exp2(hlo::negate(hlo::abs(hlo::subtract(a, b)))));
  smooth = hlo::add(larger, mul(smooth, std::numbers::log2e));
  return hlo::select(hlo::bit_and(is_inf(a), eq(a, b)), a, smooth);
}

// ---- integers

int bit_width(DType dtype) { return static_cast<int>(byte_size(dtype)) * 8; }

/// True where a shift amount is outside [0, width).
Value overshift(Value amount) {
  Value bad = ge(amount, bit_width(amount.dtype()));
  return is_signed_integer(amount.dtype()) ? hlo::bit_or(bad, lt(amount, 0.0)) : bad;
}

Value shift_left(Value x, Value amount) {
  return hlo::select(overshift(amount), full_like(x, 0), hlo::shift_left(x, amount));
}

Value shift_right(Value x, Value amount) {
  if (!is_signed_integer(x.dtype()))
    return hlo::select(overshift(amount), full_like(x, 0), hlo::shift_right_logical(x, amount));
  Value limited = hlo::select(overshift(amount), full_like(amount, bit_width(x.dtype()) - 1), amount);
  return hlo::shift_right_arithmetic(x, limited);
}

/// Euclid's algorithm on all elements at once.
Value greatest_common_divisor(Value a, Value b) {
  auto magnitude = [](Value x) { return is_signed_integer(x.dtype()) ? hlo::abs(x) : x; };
  std::vector<Value> init = {magnitude(a), magnitude(b)};
  auto any_left = [](std::span<const Value> state) -> Values {
    return {hlo::reduce(ne(state[1], 0.0), hlo::Reducer::kOr, iota(state[1].rank()))};
  };
  auto step = [](std::span<const Value> state) -> Values {
    Value done = eq(state[1], 0.0);
    Value divisor = hlo::select(done, full_like(state[1], 1), state[1]);
    return {hlo::select(done, state[0], state[1]), hlo::select(done, state[1], hlo::remainder(state[0], divisor))};
  };
  return hlo::while_loop(init, any_left, step)[0];
}

Value least_common_multiple(Value a, Value b) {
  if (byte_size(a.dtype()) < 4) {  // C's integer promotion: the magnitude is taken before narrowing
    Value wide = least_common_multiple(hlo::convert(a, DType::kS32), hlo::convert(b, DType::kS32));
    return hlo::convert(wide, a.dtype());
  }
  Value divisor = greatest_common_divisor(a, b);
  Value none = eq(divisor, 0.0);
  Value quotient = hlo::divide(a, hlo::select(none, full_like(divisor, 1), divisor));
  Value multiple = hlo::multiply(quotient, b);
  return is_signed_integer(a.dtype()) ? hlo::abs(multiple) : multiple;
}

// ---- bits of floats

/// The neighbour of `x` in the direction of `y`, on the bits: the device may flush subnormal arithmetic.
/// Bits are mapped to integers in the order of the floats they stand for (both zeros to 0).
Value next_after(Value x, Value y) {
  DType bits_type = byte_size(x.dtype()) == 8 ? DType::kS64 : byte_size(x.dtype()) == 4 ? DType::kS32 : DType::kS16;
  auto lowest = [&](Value bits) {
    return bits.builder().constant(std::numeric_limits<int64_t>::min() >> (64 - bit_width(bits_type)), bits.type());
  };
  auto mirror_negative = [&](Value bits) {
    return hlo::select(lt(bits, 0.0), hlo::subtract(lowest(bits), bits), bits);
  };
  Value from = mirror_negative(hlo::bitcast_convert(x, bits_type));
  Value to = mirror_negative(hlo::bitcast_convert(y, bits_type));
  Value step = hlo::select(gt(to, from), full_like(from, 1), full_like(from, -1));
  Value moved = mirror_negative(hlo::add(from, step));
  // Zero reached from below keeps the minus sign.
  moved = hlo::select(hlo::bit_and(eq(moved, 0.0), lt(from, 0.0)), lowest(from), moved);
  Value result = hlo::select(eq(from, to), y, hlo::bitcast_convert(moved, x.dtype()));
  return hlo::select(is_nan(x), x, hlo::select(is_nan(y), y, result));
}

// ---- the table

constexpr Row kRows[] = {
    {"add.Tensor", add_scaled},
    {"add.Scalar", add_scaled},
    {"sub.Tensor", subtract_scaled},
    {"sub.Scalar", subtract_scaled},
    {"rsub.Tensor", reverse_subtract_scaled},
    {"rsub.Scalar", reverse_subtract_scaled},
    {"mul.Tensor", binary_wide<hlo::multiply>},
    {"mul.Scalar", binary_wide<hlo::multiply>},
    {"addcmul", add_product},
    {"addcdiv", add_quotient},
    {"lerp.Tensor", ternary<lerp>},
    {"lerp.Scalar", ternary<lerp>},
    {"div.Tensor", true_divide},
    {"div.Scalar", true_divide},
    {"div.Tensor_mode", divide_mode},
    {"div.Scalar_mode", divide_mode},
    {"floor_divide", floor_divide},
    {"floor_divide.Scalar", floor_divide},
    {"remainder.Tensor", modulo<floored_remainder>},
    {"remainder.Scalar", modulo<floored_remainder>},
    {"remainder.Scalar_Tensor", modulo<floored_remainder>},
    {"fmod.Tensor", modulo<hlo::remainder>},
    {"fmod.Scalar", modulo<hlo::remainder>},
    {"pow.Tensor_Tensor", power},
    {.name = "pow.Tensor_Scalar", .lower = power_scalar_exponent, .constant_pays = true},
    {"pow.Scalar", power},
    {"atan2", binary<hlo::atan2>},
    {"hypot", binary<hypotenuse>},
    {"maximum", binary_ordered<hlo::maximum>},
    {"minimum", binary_ordered<hlo::minimum>},
    {"fmax", binary_ordered<float_maximum>},
    {"fmin", binary_ordered<float_minimum>},
    {"clamp", clamp},
    {"clamp.Tensor", clamp},
    {"clamp_min", binary_ordered<hlo::maximum>},
    {"clamp_min.Tensor", binary_ordered<hlo::maximum>},
    {"clamp_max", binary_ordered<hlo::minimum>},
    {"clamp_max.Tensor", binary_ordered<hlo::minimum>},
    {"copysign.Tensor", binary_native<copy_sign>},
    {"copysign.Scalar", binary_native<copy_sign>},
    {"nextafter", binary_native<next_after>},
    {"heaviside", binary_native<heaviside>},
    {"xlogy.Tensor", binary<x_times_log<hlo::log>>},
    {"xlogy.Scalar_Self", binary<x_times_log<hlo::log>>},
    {"xlogy.Scalar_Other", binary<x_times_log<hlo::log>>},
    {"special_xlog1py", binary<x_times_log<hlo::log_plus_one>>},
    {"special_xlog1py.self_scalar", binary<x_times_log<hlo::log_plus_one>>},
    {"special_xlog1py.other_scalar", binary<x_times_log<hlo::log_plus_one>>},
    {"logaddexp", binary<log_add_exp>},
    {"logaddexp2", binary<log_add_exp2>},
    {"gcd", binary_native<greatest_common_divisor>},
    {"lcm", binary_native<least_common_multiple>},
    {"bitwise_and.Tensor", binary_native<hlo::bit_and>},
    {"bitwise_and.Scalar", binary_native<hlo::bit_and>},
    {"bitwise_and.Scalar_Tensor", binary_native<hlo::bit_and>},
    {"bitwise_or.Tensor", binary_native<hlo::bit_or>},
    {"bitwise_or.Scalar", binary_native<hlo::bit_or>},
    {"bitwise_or.Scalar_Tensor", binary_native<hlo::bit_or>},
    {"bitwise_xor.Tensor", binary_native<hlo::bit_xor>},
    {"bitwise_xor.Scalar", binary_native<hlo::bit_xor>},
    {"bitwise_xor.Scalar_Tensor", binary_native<hlo::bit_xor>},
    {"bitwise_left_shift.Tensor", binary_native<shift_left>},
    {"bitwise_left_shift.Tensor_Scalar", binary_native<shift_left>},
    {"bitwise_left_shift.Scalar_Tensor", binary_native<shift_left>},
    {"__lshift__.Tensor", binary_native<shift_left>},
    {"__lshift__.Scalar", binary_native<shift_left>},
    {"bitwise_right_shift.Tensor", binary_native<shift_right>},
    {"bitwise_right_shift.Tensor_Scalar", binary_native<shift_right>},
    {"bitwise_right_shift.Scalar_Tensor", binary_native<shift_right>},
    {"__rshift__.Tensor", binary_native<shift_right>},
    {"__rshift__.Scalar", binary_native<shift_right>},
};

}  // namespace

std::span<const Row> elementwise_arithmetic_rows() { return kRows; }

}  // namespace tpu::lowering
