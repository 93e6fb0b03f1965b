#pragma once
// Rules by which pointwise functions over values become table rows, shared by the elementwise, activation
// and loss families. A rule decides the dtype in which a row computes and rounds once at the end:
//   unary, binary, ternary   in the compute type of the result (sin of int64 computes in float32);
//   binary_native            in the result's dtype: functions that pick or move bits;
//   unary_of_input           in the input's own dtype (isnan, abs of a complex number);
//   binary_exact, ...        operands are first rounded to the promoted dtype, then widened: for functions with
//                            jumps (remainder, comparisons), where a wider scalar would land on the other side.

#include <numbers>

#include "lowering/helpers.h"
#include "lowering/op_call.h"
#include "lowering/table.h"
#include "stablehlo/ops.h"

namespace tpu::lowering {

using Unary = Value (*)(Value);
using Binary = Value (*)(Value, Value);
using Ternary = Value (*)(Value, Value, Value);
using Values = std::vector<Value>;

/// Dtype in which the call computes: the compute type of its first result.
inline DType work_type(const OpCall& call) { return compute_type(call.result_type().dtype); }

/// `x` as result 0 of the call: rounded to the result's dtype.
inline Values finish(const OpCall& call, Value x) { return {convert_like_torch(x, call.result_type().dtype)}; }

/// Argument `i` in the work type, broadcast to the result's sizes.
inline Value work_operand(const OpCall& call, size_t i) { return elementwise_operand(call, i, work_type(call)); }

/// Argument `i` rounded to the result's dtype, then widened to compute, as PyTorch's CPU kernels take the scalars of
/// half-precision arithmetic (products and quotients excepted: those keep the scalar wide).
inline Value rounded_operand(const OpCall& call, size_t i) {
  return stablehlo::convert(elementwise_operand(call, i, call.result_type().dtype), work_type(call));
}

/// Scalar argument `i` in the work type, 0-d (or as it is shaped), for use through `like`.
inline Value work_scalar(const OpCall& call, size_t i, Value like) {
  return broadcast_to(call.operand(i, like.dtype()), like.dims());
}

/// Argument `i` rounded to the promoted dtype, then widened to compute; broadcast to the result's sizes.
inline Value exact_operand(const OpCall& call, size_t i) {
  return stablehlo::convert(elementwise_operand(call, i, call.promoted()), compute_type(call.promoted()));
}

template <Unary f>
Values unary(const OpCall& call) {
  return finish(call, f(work_operand(call, 0)));
}

template <Unary f>
Values unary_of_input(const OpCall& call) {
  return finish(call, f(stablehlo::convert(call.tensor(0), compute_type(call.dtype(0)))));
}

template <Binary f>
Values binary(const OpCall& call) {
  return finish(call, f(rounded_operand(call, 0), rounded_operand(call, 1)));
}

/// Like `binary`, with scalars at full precision.
template <Binary f>
Values binary_wide(const OpCall& call) {
  return finish(call, f(work_operand(call, 0), work_operand(call, 1)));
}

template <Binary f>
Values binary_exact(const OpCall& call) {
  return finish(call, f(exact_operand(call, 0), exact_operand(call, 1)));
}

/// In the result's own dtype, for functions that do not round.
template <Binary f>
Values binary_native(const OpCall& call) {
  DType dtype = call.result_type().dtype;
  return {f(elementwise_operand(call, 0, dtype), elementwise_operand(call, 1, dtype))};
}

template <Ternary f>
Values ternary(const OpCall& call) {
  return finish(call, f(work_operand(call, 0), work_operand(call, 1), work_operand(call, 2)));
}

/// True when scalar argument `i` is known and equals `value`.
inline bool known_equals(const OpCall& call, size_t i, double value) {
  auto scalar = call.known(i);
  return scalar && scalar->kind != Scalar::Kind::kComplex && scalar->as_double() == value;
}

// ---- comparisons against a constant, and arithmetic with one; the constant takes the value's type
inline Value lt(Value a, Value b) { return stablehlo::compare(a, b, stablehlo::Compare::kLt); }
inline Value le(Value a, Value b) { return stablehlo::compare(a, b, stablehlo::Compare::kLe); }
inline Value gt(Value a, Value b) { return stablehlo::compare(a, b, stablehlo::Compare::kGt); }
inline Value ge(Value a, Value b) { return stablehlo::compare(a, b, stablehlo::Compare::kGe); }
inline Value eq(Value a, Value b) { return stablehlo::compare(a, b, stablehlo::Compare::kEq); }
inline Value ne(Value a, Value b) { return stablehlo::compare(a, b, stablehlo::Compare::kNe); }
inline Value lt(Value a, double b) { return lt(a, full_like(a, b)); }
inline Value le(Value a, double b) { return le(a, full_like(a, b)); }
inline Value gt(Value a, double b) { return gt(a, full_like(a, b)); }
inline Value ge(Value a, double b) { return ge(a, full_like(a, b)); }
inline Value eq(Value a, double b) { return eq(a, full_like(a, b)); }
inline Value ne(Value a, double b) { return ne(a, full_like(a, b)); }
inline Value add(Value a, double b) { return stablehlo::add(a, full_like(a, b)); }
inline Value mul(Value a, double b) { return stablehlo::multiply(a, full_like(a, b)); }
inline Value div(Value a, double b) { return stablehlo::divide(a, full_like(a, b)); }
inline Value rsub(Value a, double b) { return stablehlo::subtract(full_like(a, b), a); }
inline Value rdiv(Value a, double b) { return stablehlo::divide(full_like(a, b), a); }
inline Value square(Value a) { return stablehlo::multiply(a, a); }

// ---- functions over values that StableHLO does not have (elementwise_math.cpp)
Value is_inf(Value x);                 // i1; false for integers
Value sign_bit(Value x);               // i1; of NaN and -0 too
Value truncate(Value x);               // towards zero; identity for integers
Value sign_of(Value x);                // -1, 0, 1; 0 for NaN; any real dtype
Value copy_sign(Value x, Value sign);  // floats
Value largest_finite(Value like);
Value exp2(Value x);
Value asin(Value x);  // inverse and hyperbolic functions: floats and complex
Value acos(Value x);
Value atan(Value x);
Value asinh(Value x);
Value acosh(Value x);
Value atanh(Value x);
Value sinh(Value x);
Value cosh(Value x);
Value log_sigmoid(Value x);  // log(1 / (1 + exp(-x))) without overflow
Value softplus(Value x);     // log(1 + exp(x)) without overflow

// ---- the parts of elementwise_rows()
std::span<const Row> elementwise_arithmetic_rows();
std::span<const Row> elementwise_special_rows();
std::span<const Row> elementwise_gamma_rows();
std::span<const Row> elementwise_implicit_rows();
std::span<const Row> elementwise_polynomial_rows();

}  // namespace tpu::lowering
