#include "stablehlo/emit.h"

#include "base/error.h"

namespace tpu::stablehlo {
namespace {

void append_list(std::string& text, std::span<const int64_t> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += ", ";
    append_integer(text, values[i]);
  }
}

void append_result_types(std::string& text, std::span<const TensorType> results) {
  if (results.size() != 1) text += '(';
  for (size_t i = 0; i < results.size(); ++i) {
    if (i != 0) text += ", ";
    append_type(text, results[i]);
  }
  if (results.size() != 1) text += ')';
}

}  // namespace

std::string list(std::span<const int64_t> values) {
  std::string text = "[";
  append_list(text, values);
  return text + "]";
}

std::string i64_array(std::span<const int64_t> values) {
  std::string text = "array<i64";
  if (!values.empty()) text += ": ";
  append_list(text, values);
  return text + ">";
}

void fail(const char* op, const char* message, std::span<const Value> operands, bool about_dtypes) {
  std::string text = std::string("stablehlo.") + op + ": " + message + " (operands";
  for (size_t i = 0; i < operands.size(); ++i) {
    text += i == 0 ? " " : ", ";
    text += operands[i].defined() ? to_string(operands[i].type()) : "undefined";
  }
  throw OperandError(text + ")", about_dtypes);
}

std::string generic(const char* op, std::span<const Value> operands, const std::string& attributes,
                    const std::string& regions) {
  std::string text = "\"";
  if (std::string_view(op).find('.') == std::string_view::npos) text += "stablehlo.";
  text += op;
  text += "\"(";
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i != 0) text += ", ";
    append_ref(text, operands[i]);
  }
  text += ')';
  if (!regions.empty()) {
    text += ' ';
    text += regions;
  }
  if (!attributes.empty()) {
    text += " {";
    text += attributes;
    text += '}';
  }
  text += " : (";
  append_types(text, operands);
  text += ") -> ";
  return text;
}

std::vector<Value> emit_generic(Builder& builder, const char* op, std::span<const Value> operands,
                                const std::string& attributes, std::span<const TensorType> results,
                                const std::string& regions) {
  std::string text = generic(op, operands, attributes, regions);
  append_result_types(text, results);
  if (results.size() == 1) return {builder.emit_one(std::move(text), results[0])};
  return builder.emit(std::move(text), results);
}

Value emit_generic_one(const char* op, std::initializer_list<Value> operands, const std::string& attributes,
                       const TensorType& result, const std::string& regions) {
  std::string text = generic(op, {operands.begin(), operands.size()}, attributes, regions);
  append_type(text, result);
  return operands.begin()->builder().emit_one(std::move(text), result);
}

std::string join_regions(std::span<const std::string> regions) {
  std::string text = "(";
  for (size_t i = 0; i < regions.size(); ++i) {
    if (i != 0) text += ", ";
    text.append(regions[i], 1, regions[i].size() - 2);
  }
  return text + ")";
}

std::vector<TensorType> reducer_arguments(std::span<const Value> values) {
  std::vector<TensorType> types;
  for (int half = 0; half < 2; ++half) {
    for (Value value : values) types.push_back({value.dtype(), {}});
  }
  return types;
}

const char* dot_precision_name(const Builder& builder, DType dtype) {
  const bool wide = byte_size(real_type(dtype)) >= 4 && (is_floating(dtype) || is_complex(dtype));
  if (!wide || builder.dot_precision() == 0) return "";
  return builder.dot_precision() == 1 ? "HIGH" : "HIGHEST";
}

bool distinct_axes(const Dims& axes, size_t rank) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= static_cast<int64_t>(rank)) return false;
    for (size_t j = 0; j < i; ++j) {
      if (axes[i] == axes[j]) return false;
    }
  }
  return true;
}

}  // namespace tpu::stablehlo
