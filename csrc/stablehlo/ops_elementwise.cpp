// Elementwise operations, conversions, comparison and selection.

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

bool is_float_or_complex(DType t) { return is_floating(t) || is_complex(t); }
bool is_number(DType t) { return t != DType::kBool; }
bool is_bits(DType t) { return is_integral_or_bool(t); }
bool is_any(DType) { return true; }

using Accepts = bool (*)(DType);

// `stablehlo.op %a, %b : type`
Value emit_plain(const char* op, std::initializer_list<Value> operands, const TensorType& type) {
  std::string text = "stablehlo.";
  text += op;
  append_operands(text, {operands.begin(), operands.size()});
  text += " : ";
  append_type(text, type);
  return operands.begin()->builder().emit_one(std::move(text), type);
}

// `stablehlo.op %a : (operand type) -> result type`
Value emit_retyped(const char* op, std::initializer_list<Value> operands, const TensorType& result) {
  std::string text = "stablehlo.";
  text += op;
  append_operands(text, {operands.begin(), operands.size()});
  text += " : (";
  append_types(text, {operands.begin(), operands.size()});
  text += ") -> ";
  append_type(text, result);
  return operands.begin()->builder().emit_one(std::move(text), result);
}

Value unary(const char* op, Value x, Accepts accepts) {
  check_dtypes(accepts(x.dtype()), op, "wrong element type", {x});
  return emit_plain(op, {x}, x.type());
}

Value binary(const char* op, Value a, Value b, Accepts accepts) {
  check_dtypes(a.dtype() == b.dtype(), op, "operands must have one type", {a, b});
  check(a.type() == b.type(), op, "operands must have one type", {a, b});
  check_dtypes(accepts(a.dtype()), op, "wrong element type", {a, b});
  return emit_plain(op, {a, b}, a.type());
}

// Whether each number of `narrow` is one of `wide`.
bool holds_all_of(DType wide, DType narrow) {
  if (is_complex(wide) || is_complex(narrow)) return false;
  if (narrow == DType::kBool) return wide != DType::kBool;
  if (is_floating(narrow)) return is_floating(wide) && byte_size(wide) >= 4 && byte_size(narrow) < byte_size(wide);
  if (is_floating(wide) || wide == DType::kBool) return false;
  const bool keeps_sign = is_signed_integer(wide) || !is_signed_integer(narrow);
  return keeps_sign && byte_size(wide) > byte_size(narrow);
}

const char* direction_name(Compare direction) {
  switch (direction) {
    case Compare::kEq:
      return "EQ";
    case Compare::kNe:
      return "NE";
    case Compare::kLt:
      return "LT";
    case Compare::kLe:
      return "LE";
    case Compare::kGt:
      return "GT";
    case Compare::kGe:
      return "GE";
  }
  return "";
}

const char* comparison_type(DType dtype, bool total_order) {
  if (is_float_or_complex(dtype)) return total_order && is_floating(dtype) ? "TOTALORDER" : "FLOAT";
  return is_signed_integer(dtype) ? "SIGNED" : "UNSIGNED";
}

}  // namespace

Value abs(Value x) {
  if (!is_complex(x.dtype())) return unary("abs", x, is_number);
  return emit_retyped("abs", {x}, {real_type(x.dtype()), x.dims()});
}
Value cbrt(Value x) { return unary("cbrt", x, is_float_or_complex); }
Value ceil(Value x) { return unary("ceil", x, is_floating); }
Value cosine(Value x) { return unary("cosine", x, is_float_or_complex); }
Value count_leading_zeros(Value x) { return unary("count_leading_zeros", x, is_integer); }
Value exponential(Value x) { return unary("exponential", x, is_float_or_complex); }
Value exponential_minus_one(Value x) { return unary("exponential_minus_one", x, is_float_or_complex); }
Value floor(Value x) { return unary("floor", x, is_floating); }
Value imag(Value x) {
  check_dtypes(is_float_or_complex(x.dtype()), "imag", "wrong element type", {x});
  return emit_retyped("imag", {x}, {real_type(x.dtype()), x.dims()});
}
Value is_finite(Value x) {
  check_dtypes(is_floating(x.dtype()), "is_finite", "wrong element type", {x});
  return emit_retyped("is_finite", {x}, {DType::kBool, x.dims()});
}
Value log(Value x) { return unary("log", x, is_float_or_complex); }
Value log_plus_one(Value x) { return unary("log_plus_one", x, is_float_or_complex); }
Value logistic(Value x) { return unary("logistic", x, is_float_or_complex); }
Value negate(Value x) { return unary("negate", x, is_number); }
Value logical_not(Value x) { return unary("not", x, is_bits); }
Value popcnt(Value x) { return unary("popcnt", x, is_integer); }
Value real(Value x) {
  check_dtypes(is_float_or_complex(x.dtype()), "real", "wrong element type", {x});
  return emit_retyped("real", {x}, {real_type(x.dtype()), x.dims()});
}
Value round_nearest_even(Value x) { return unary("round_nearest_even", x, is_floating); }
Value round_nearest_afz(Value x) { return unary("round_nearest_afz", x, is_floating); }
Value rsqrt(Value x) { return unary("rsqrt", x, is_float_or_complex); }
Value sign(Value x) { return unary("sign", x, is_number); }
Value sine(Value x) { return unary("sine", x, is_float_or_complex); }
Value sqrt(Value x) { return unary("sqrt", x, is_float_or_complex); }
Value tan(Value x) { return unary("tan", x, is_float_or_complex); }
Value tanh(Value x) { return unary("tanh", x, is_float_or_complex); }

Value convert(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  constexpr auto kConvert = Builder::Origin::Op::kConvert;
  const auto* from = x.builder().find_origin(x, kConvert);
  if (from != nullptr && holds_all_of(x.dtype(), from->operand.dtype())) return convert(from->operand, dtype);
  const Value made = emit_retyped("convert", {x}, {dtype, x.dims()});
  x.builder().note_origin(made, {kConvert, x, {}});
  return made;
}

Value bitcast_convert(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const bool legal = x.dtype() != DType::kBool && dtype != DType::kBool && is_complex(x.dtype()) == is_complex(dtype);
  check_dtypes(legal, "bitcast_convert", "bool and complex cannot be reinterpreted", {x});
  TensorType result{dtype, x.dims()};
  const size_t from = byte_size(x.dtype()), to = byte_size(dtype);
  if (from > to) {
    result.dims.push_back(static_cast<int64_t>(from / to));
  } else if (from < to) {
    const bool fits = x.rank() > 0 && x.dims().back() == static_cast<int64_t>(to / from);
    check(fits, "bitcast_convert", "the last dim must hold exactly one wider element", {x});
    result.dims.pop_back();
  }
  constexpr auto kBitcast = Builder::Origin::Op::kBitcast;
  const auto* made_from = x.builder().find_origin(x, kBitcast);
  if (made_from != nullptr && made_from->operand.dims() == x.dims() && from == to) {
    return bitcast_convert(made_from->operand, dtype);
  }
  const Value made = emit_retyped("bitcast_convert", {x}, result);
  x.builder().note_origin(made, {kBitcast, x, {}});
  return made;
}

Value reduce_precision(Value x, int exponent_bits, int mantissa_bits) {
  check_dtypes(is_floating(x.dtype()), "reduce_precision", "wrong element type", {x});
  std::string text = "stablehlo.reduce_precision";
  append_operands(text, {&x, 1});
  text += ", format = e" + std::to_string(exponent_bits) + "m" + std::to_string(mantissa_bits) + " : ";
  append_type(text, x.type());
  return x.builder().emit_one(std::move(text), x.type());
}

Value add(Value a, Value b) { return binary("add", a, b, is_any); }
Value subtract(Value a, Value b) { return binary("subtract", a, b, is_number); }
Value multiply(Value a, Value b) { return binary("multiply", a, b, is_any); }
Value divide(Value a, Value b) { return binary("divide", a, b, is_number); }
Value remainder(Value a, Value b) { return binary("remainder", a, b, is_number); }
Value maximum(Value a, Value b) { return binary("maximum", a, b, is_any); }
Value minimum(Value a, Value b) { return binary("minimum", a, b, is_any); }
Value power(Value a, Value b) { return binary("power", a, b, is_number); }
Value atan2(Value a, Value b) { return binary("atan2", a, b, is_float_or_complex); }
Value bit_and(Value a, Value b) { return binary("and", a, b, is_bits); }
Value bit_or(Value a, Value b) { return binary("or", a, b, is_bits); }
Value bit_xor(Value a, Value b) { return binary("xor", a, b, is_bits); }
Value shift_left(Value a, Value b) { return binary("shift_left", a, b, is_integer); }
Value shift_right_arithmetic(Value a, Value b) { return binary("shift_right_arithmetic", a, b, is_integer); }
Value shift_right_logical(Value a, Value b) { return binary("shift_right_logical", a, b, is_integer); }

Value complex(Value re, Value im) {
  check(re.type() == im.type(), "complex", "operands must have one type", {re, im});
  check(re.dtype() == DType::kF32 || re.dtype() == DType::kF64, "complex", "parts must be f32 or f64", {re, im});
  return emit_retyped("complex", {re, im}, {re.dtype() == DType::kF32 ? DType::kC64 : DType::kC128, re.dims()});
}

Value compare(Value a, Value b, Compare direction, bool total_order) {
  check_dtypes(a.dtype() == b.dtype(), "compare", "operands must have one type", {a, b});
  check(a.type() == b.type(), "compare", "operands must have one type", {a, b});
  const bool ordered = direction != Compare::kEq && direction != Compare::kNe;
  check_dtypes(!ordered || !is_complex(a.dtype()), "compare", "complex numbers have no order", {a, b});
  const TensorType result{DType::kBool, a.dims()};
  std::string text = "stablehlo.compare ";
  text += direction_name(direction);
  text += ", ";
  append_ref(text, a);
  text += ", ";
  append_ref(text, b);
  text += ", ";
  text += comparison_type(a.dtype(), total_order);
  text += " : (";
  append_type(text, a.type());
  text += ", ";
  append_type(text, b.type());
  text += ") -> ";
  append_type(text, result);
  return a.builder().emit_one(std::move(text), result);
}

Value select(Value predicate, Value on_true, Value on_false) {
  check(on_true.type() == on_false.type(), "select", "branches must have one type", {predicate, on_true, on_false});
  check(predicate.dtype() == DType::kBool && (predicate.rank() == 0 || predicate.dims() == on_true.dims()), "select",
        "the predicate must be i1 with the branches' dims or none", {predicate, on_true, on_false});
  std::string text = "stablehlo.select";
  const Value operands[] = {predicate, on_true, on_false};
  append_operands(text, operands);
  text += " : ";
  append_type(text, predicate.type());
  text += ", ";
  append_type(text, on_true.type());
  return on_true.builder().emit_one(std::move(text), on_true.type());
}

Value clamp(Value low, Value x, Value high) {
  for (Value bound : {low, high}) {
    check(bound.dtype() == x.dtype() && (bound.rank() == 0 || bound.dims() == x.dims()), "clamp",
          "bounds must have the operand's type or be 0-d", {low, x, high});
  }
  return emit_retyped("clamp", {low, x, high}, x.type());
}

}  // namespace tpu::stablehlo
