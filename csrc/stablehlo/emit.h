#pragma once
// Text helpers shared by builder.cpp and the ops_*.cpp files; not meant for lowerings.

#include <initializer_list>
#include <span>
#include <string>

#include "stablehlo/builder.h"

namespace tpu::stablehlo {

void append_integer(std::string& text, int64_t value);
void append_ref(std::string& text, Value value);
void append_type(std::string& text, const TensorType& type);
/// " %1, %2" (with the leading space), nothing for none.
void append_operands(std::string& text, std::span<const Value> values);
/// "tensor<f32>, tensor<i1>"
void append_types(std::string& text, std::span<const Value> values);
/// "[0, 1]"
std::string list(std::span<const int64_t> values);
/// "array<i64: 0, 1>"
std::string i64_array(std::span<const int64_t> values);

/// Throws OperandError "stablehlo.<op>: <message> (operands ...)".
[[noreturn]] void fail(const char* op, const char* message, std::span<const Value> operands, bool about_dtypes = false);
inline void check(bool condition, const char* op, const char* message, std::span<const Value> operands) {
  if (!condition) fail(op, message, operands);
}
inline void check(bool condition, const char* op, const char* message, std::initializer_list<Value> operands) {
  if (!condition) fail(op, message, {operands.begin(), operands.size()});
}

/// The same for what is wrong with dtypes.
inline void check_dtypes(bool condition, const char* op, const char* message, std::initializer_list<Value> operands) {
  if (!condition) fail(op, message, {operands.begin(), operands.size()}, true);
}

/// `"stablehlo.op"(%a, %b) (regions) {attributes} : (types) -> ` without the result types; `op` may carry
/// its own dialect ("chlo.erf").
std::string generic(const char* op, std::span<const Value> operands, const std::string& attributes,
                    const std::string& regions = "");
std::vector<Value> emit_generic(Builder& builder, const char* op, std::span<const Value> operands,
                                const std::string& attributes, std::span<const TensorType> results,
                                const std::string& regions = "");
Value emit_generic_one(const char* op, std::initializer_list<Value> operands, const std::string& attributes,
                       const TensorType& result, const std::string& regions = "");

/// "({...}), ({...})" as the operands of one operation: "({...}, {...})".
std::string join_regions(std::span<const std::string> regions);

/// 0-d types of `values`, twice over (accumulators, then elements): block arguments of a reducer.
std::vector<TensorType> reducer_arguments(std::span<const Value> values);

/// " {precision_config = ...}"-style list "[HIGHEST, HIGHEST]" elements for operands of `dtype`, or "" for
/// the default.
const char* dot_precision_name(const Builder& builder, DType dtype);

/// True when `axes` are distinct and all lie in [0, rank).
bool distinct_axes(const Dims& axes, size_t rank);

}  // namespace tpu::stablehlo
