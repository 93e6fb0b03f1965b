#include "stablehlo/builder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/literal.h"

namespace tpu::stablehlo {
namespace {

// Dense literal in nested row-major form: [[1, 2], [3, 4]].
template <typename T>
void append_nested(std::string& text, std::span<const T> values, std::span<const int64_t> sizes, DType dtype) {
  if (sizes.empty()) {
    append_literal(text, values[0], dtype);
    return;
  }
  const size_t inner = values.size() / static_cast<size_t>(sizes[0]);
  text += '[';
  for (int64_t i = 0; i < sizes[0]; ++i) {
    if (i != 0) text += ", ";
    append_nested(text, values.subspan(static_cast<size_t>(i) * inner, inner), sizes.subspan(1), dtype);
  }
  text += ']';
}

template <typename T>
std::string dense_literal(std::span<const T> values, const TensorType& type) {
  ensure(static_cast<int64_t>(values.size()) == type.numel(), "constant: number of values differs from the type's");
  std::string text;
  if (!values.empty()) append_nested<T>(text, values, type.dims, type.dtype);
  return text;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

template <typename T>
std::string splat_literal(T value, const TensorType& type) {
  std::string text;
  if (type.numel() != 0) append_literal(text, value, type.dtype);
  return text;
}

}  // namespace

const TensorType& Value::type() const {
  ensure(defined(), "stablehlo: an undefined value was used");
  return builder_->type_of(id_);
}

Builder::Builder(std::string module_name) : module_name_(std::move(module_name)) { body_.reserve(1024); }

uint32_t Builder::new_value(const TensorType& type) {
  types_.push_back(type);
  return static_cast<uint32_t>(types_.size() - 1);
}

void Builder::line(const std::string& text) {
  body_.append(static_cast<size_t>(depth_ + 2) * 2, ' ');
  body_ += text;
  body_ += '\n';
}

Value Builder::parameter(const TensorType& type, int aliased_output) {
  const uint32_t id = new_value(type);
  parameters_.push_back({id, aliased_output});
  return {this, id};
}

void Builder::set_aliased_output(size_t parameter, int output) { parameters_.at(parameter).aliased_output = output; }

void Builder::note_origin(Value made, Origin origin) { origins_.try_emplace(made.id(), std::move(origin)); }

const Builder::Origin* Builder::find_origin(Value made, Origin::Op op) const {
  const auto found = origins_.find(made.id());
  return found == origins_.end() || found->second.op != op ? nullptr : &found->second;
}

void Builder::set_dot_precision(int precision) {
  ensure(precision >= 0 && precision <= 2, "set_dot_precision: 0, 1 or 2");
  dot_precision_ = precision;
}

void Builder::set_location(const std::string& name, const std::string& line) {
  std::string text = "loc(" + quoted(name);
  if (const size_t colon = line.rfind(':'); colon != std::string::npos) {
    text += '(' + quoted(line.substr(0, colon)) + line.substr(colon) + ":0)";
  }
  const size_t number = locations_.emplace(text + ')', locations_.size()).first->second;
  location_ = " loc(#l" + std::to_string(number) + ')';
}

Value Builder::constant_text(const std::string& literal, const TensorType& type) {
  std::string text = "stablehlo.constant dense<";
  text += literal;
  text += "> : ";
  append_type(text, type);
  return emit_one(std::move(text), type);
}

Value Builder::splat(std::string literal, const TensorType& type) {
  const Value value = constant_text(literal, type);
  if (!literal.empty()) splats_.try_emplace(value.id(), std::move(literal));
  return value;
}

Value Builder::resized_constant(Value x, const Dims& sizes) {
  const auto found = splats_.find(x.id());
  const TensorType type{x.dtype(), sizes};
  return found == splats_.end() || type.numel() == 0 ? Value() : splat(std::string(found->second), type);
}

Value Builder::constant(double value, const TensorType& type) { return splat(splat_literal(value, type), type); }
Value Builder::constant(int64_t value, const TensorType& type) { return splat(splat_literal(value, type), type); }
Value Builder::constant(std::complex<double> value, const TensorType& type) {
  return splat(splat_literal(value, type), type);
}
Value Builder::constant(std::span<const int64_t> values, const TensorType& type) {
  return constant_text(dense_literal(values, type), type);
}
Value Builder::constant(std::span<const double> values, const TensorType& type) {
  return constant_text(dense_literal(values, type), type);
}

void Builder::note_operation(std::span<const Value> results) {
  if (depth_ != 0) return;
  operations_.push_back({body_.size(), results.empty() ? 0 : results[0].id(), static_cast<uint32_t>(results.size())});
}

std::vector<Value> Builder::emit(std::string text, std::span<const TensorType> results) {
  std::vector<Value> values;
  values.reserve(results.size());
  std::string names;
  for (const TensorType& type : results) {
    values.push_back(Value(this, new_value(type)));
    if (!names.empty()) names += ", ";
    append_ref(names, values.back());
  }
  if (!names.empty()) names += " = ";
  line(names + text + location_);
  note_operation(values);
  return values;
}

Value Builder::emit_one(std::string text, const TensorType& result) {
  const bool has_region = text.find('\n') != std::string::npos;
  if (!has_region) {
    if (const auto found = known_.find(text); found != known_.end()) return found->second;
  }
  const Value value(this, new_value(result));
  body_.append(static_cast<size_t>(depth_ + 2) * 2, ' ');
  append_ref(body_, value);
  body_ += " = ";
  body_ += text;
  body_ += location_;
  body_ += '\n';
  note_operation({&value, 1});
  if (!has_region) known_.emplace(std::move(text), value);
  return value;
}

std::string Builder::region(std::span<const TensorType> arguments, const Region& body, const char* terminator) {
  // The bodies of reductions may not refer to outer values, so each block knows its own operations only.
  std::string outer_body;
  std::unordered_map<std::string, Value> outer_known;
  const std::string outer_location = location_;
  outer_body.swap(body_);
  outer_known.swap(known_);
  ++depth_;
  std::vector<Value> values;
  values.reserve(arguments.size());
  for (const TensorType& type : arguments) values.push_back(Value(this, new_value(type)));

  const std::vector<Value> yielded = body(values);
  std::string last(terminator);
  append_operands(last, yielded);
  if (!yielded.empty()) last += " : ";
  append_types(last, yielded);
  line(last);

  --depth_;
  location_ = outer_location;
  outer_body.swap(body_);
  outer_known.swap(known_);
  const std::string indent(static_cast<size_t>(depth_ + 2) * 2, ' ');
  std::string text = "({\n";
  if (!values.empty()) {
    text += indent + "^bb0(";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i != 0) text += ", ";
      append_ref(text, values[i]);
      text += ": ";
      append_type(text, arguments[i]);
    }
    text += "):\n";
  }
  return text + outer_body + indent + "})";
}

// The operations that `results` depend on, and those that make nothing. Names of values are read off the text.
std::string Builder::needed(std::span<const Value> results) const {
  std::vector<bool> used(types_.size(), false);
  for (Value result : results) used[result.id()] = true;
  std::vector<bool> keep(operations_.size(), false);
  for (size_t i = operations_.size(); i-- > 0;) {
    const Operation& operation = operations_[i];
    keep[i] = operation.results == 0;
    for (uint32_t k = 0; k < operation.results; ++k) keep[i] = keep[i] || used[operation.first_result + k];
    if (!keep[i]) continue;
    const char* const end = body_.data() + operation.end;
    const char* at = body_.data() + (i == 0 ? 0 : operations_[i - 1].end);
    while ((at = std::find(at, end, '%')) != end) {
      uint32_t id = 0;
      at = std::from_chars(at + 1, end, id).ptr;
      used[id] = true;
    }
  }
  std::string text;
  text.reserve(body_.size());
  for (size_t i = 0; i < operations_.size(); ++i) {
    const size_t begin = i == 0 ? 0 : operations_[i - 1].end;
    if (keep[i]) text.append(body_, begin, operations_[i].end - begin);
  }
  return text;
}

// The open block as a function.
std::string Builder::function_text(const std::string& visibility_and_name, const std::string& arguments,
                                   std::span<const Value> results) const {
  std::string text = "  func.func " + visibility_and_name + "(" + arguments + ") -> (";
  append_types(text, results);
  text += ") {\n";
  text += needed(results);
  text += "    return";
  append_operands(text, results);
  if (!results.empty()) text += " : ";
  append_types(text, results);
  text += "\n  }\n";
  return text;
}

Builder::Function Builder::function(std::span<const TensorType> arguments, const Region& body) {
  ensure(depth_ == 0, "a function within a region");
  const std::string outer_body = std::exchange(body_, {});
  const auto outer_known = std::exchange(known_, {});
  const auto outer_operations = std::exchange(operations_, {});
  const std::string outer_location = location_;
  std::vector<Value> values;
  std::string header;
  for (const TensorType& type : arguments) {
    values.push_back(Value(this, new_value(type)));
    if (!header.empty()) header += ", ";
    append_ref(header, values.back());
    header += ": ";
    append_type(header, type);
  }
  const std::vector<Value> results = body(values);
  Function made{"part" + std::to_string(function_count_++), {}};
  for (Value result : results) made.results.push_back(result.type());
  functions_ += function_text("private @" + made.name, header, results);
  body_ = outer_body;
  known_ = outer_known;
  operations_ = outer_operations;
  location_ = outer_location;
  return made;
}

std::vector<Value> Builder::call(const Function& function, std::span<const Value> operands) {
  std::string text = "func.call @" + function.name + "(";
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i != 0) text += ", ";
    append_ref(text, operands[i]);
  }
  text += ") : (";
  append_types(text, operands);
  text += ") -> (";
  for (size_t i = 0; i < function.results.size(); ++i) {
    if (i != 0) text += ", ";
    append_type(text, function.results[i]);
  }
  return emit(text + ")", function.results);
}

std::string Builder::finish(std::span<const Value> results) {
  std::string arguments;
  for (const Parameter& parameter : parameters_) {
    if (!arguments.empty()) arguments += ", ";
    append_ref(arguments, Value(this, parameter.id));
    arguments += ": ";
    append_type(arguments, types_[parameter.id]);
    if (parameter.aliased_output >= 0) {
      arguments += " {tf.aliasing_output = " + std::to_string(parameter.aliased_output) + " : i32}";
    }
  }
  std::string text = "module @" + module_name_ + " {\n";
  text += function_text("public @main", arguments, results);
  text += functions_;
  text += "}\n";
  for (const auto& [location, number] : locations_) text += "#l" + std::to_string(number) + " = " + location + "\n";
  body_.clear();
  return text;
}

std::string ref(Value value) {
  std::string text;
  append_ref(text, value);
  return text;
}

std::string mlir_type(const TensorType& type) {
  std::string text;
  append_type(text, type);
  return text;
}

void append_integer(std::string& text, int64_t value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  text.append(buffer, end);
}

void append_ref(std::string& text, Value value) {
  text += '%';
  append_integer(text, value.id());
}

void append_type(std::string& text, const TensorType& type) {
  text += "tensor<";
  for (int64_t size : type.dims) {
    append_integer(text, size);
    text += 'x';
  }
  text += mlir_name(type.dtype);
  text += '>';
}

void append_operands(std::string& text, std::span<const Value> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    text += i == 0 ? " " : ", ";
    append_ref(text, values[i]);
  }
}

void append_types(std::string& text, std::span<const Value> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += ", ";
    append_type(text, values[i].type());
  }
}

}  // namespace tpu::stablehlo
