#include "aten/operator.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace tpu::aten {
namespace {

using c10::TypeKind;

ArgKind kind_of_list(const c10::Type& element) {
  switch (element.kind()) {
    case TypeKind::TensorType:
      return ArgKind::kTensorList;
    case TypeKind::OptionalType:
      return ArgKind::kTensorList;  // Tensor?[]
    case TypeKind::NumberType:
      return ArgKind::kScalarList;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return ArgKind::kIntList;
    case TypeKind::FloatType:
      return ArgKind::kFloatList;
    case TypeKind::BoolType:
      return ArgKind::kBoolList;
    default:
      return ArgKind::kIgnored;
  }
}

ArgKind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case TypeKind::TensorType:
      return ArgKind::kTensor;
    case TypeKind::ListType:
      return kind_of_list(*type->expectRef<c10::ListType>().getElementType());
    case TypeKind::NumberType:
      return ArgKind::kScalar;
    case TypeKind::FloatType:
      return ArgKind::kFloat;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return ArgKind::kInt;
    case TypeKind::BoolType:
      return argument.name() == "pin_memory" ? ArgKind::kIgnored : ArgKind::kBool;
    case TypeKind::StringType:
      return ArgKind::kString;
    case TypeKind::ScalarTypeType:
      return ArgKind::kDType;
    case TypeKind::GeneratorType:
      return ArgKind::kGenerator;
    default:
      return ArgKind::kIgnored;
  }
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::optional<c10::OperatorHandle> find_schema(const std::string& name, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchema({name, overload});
}

// "add.Tensor" -> {"aten::add", "Tensor"}
std::pair<std::string, std::string> split_name(std::string_view row_name) {
  const size_t dot = row_name.find('.');
  const std::string base = "aten::" + std::string(row_name.substr(0, dot));
  return {base, dot == std::string_view::npos ? "" : std::string(row_name.substr(dot + 1))};
}

// Factories (arange, linspace, eye) say what tensor to make; their out= forms are given one instead.
bool is_factory_option(const c10::Argument& argument) {
  return argument.kwarg_only() && (argument.name() == "dtype" || argument.name() == "layout" ||
                                   argument.name() == "device" || argument.name() == "pin_memory");
}
bool is_factory(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto takes_tensor = [](const c10::Argument& a) { return kind_of(a) == ArgKind::kTensor; };
  const auto names_device = [](const c10::Argument& a) { return a.name() == "device"; };
  return std::none_of(arguments.begin(), arguments.end(), takes_tensor) &&
         std::any_of(arguments.begin(), arguments.end(), names_device);
}

// True when `other`'s arguments, without those it writes as out=, are the same as `schema`'s.
bool same_inputs(const c10::FunctionSchema& schema, const c10::FunctionSchema& other) {
  const bool factory = is_factory(schema);
  std::vector<const c10::Argument*> mine;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!factory || !is_factory_option(argument)) mine.push_back(&argument);
  }
  size_t count = 0;
  for (const c10::Argument& argument : other.arguments()) {
    if (argument.is_out()) continue;
    if (count >= mine.size()) return false;
    const c10::Argument& wanted = *mine[count++];
    if (wanted.name() != argument.name() || *wanted.type() != *argument.type()) return false;
  }
  return count == mine.size();
}

using Overloads = std::unordered_map<std::string, std::vector<std::string>>;

std::optional<c10::OperatorHandle> find_out_form(const c10::OperatorHandle& functional, const Overloads& overloads) {
  const auto found = overloads.find(functional.operator_name().name);
  if (found == overloads.end()) return std::nullopt;
  for (const std::string& overload : found->second) {
    auto candidate = find_schema(found->first, overload);
    if (!candidate) continue;
    const auto& arguments = candidate->schema().arguments();
    if (arguments.empty() || !arguments.back().is_out()) continue;
    // Factory functions carry dtype, layout and device instead of an out tensor.
    if (same_inputs(functional.schema(), candidate->schema())) return candidate;
  }
  return std::nullopt;
}

}  // namespace

Operator::Operator(c10::OperatorHandle handle_, c10::OperatorHandle functional_, const lowering::Row* row_, Form form_)
    : handle(std::move(handle_)), functional(std::move(functional_)), row(row_), form(form_) {
  const c10::OperatorName& full = handle.operator_name();
  name = full.name.substr(full.name.find("::") + 2);
  if (!full.overload_name.empty()) name += "." + full.overload_name;
  const auto& arguments = handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i])) written.push_back(i);
    if (form == Form::kOut && arguments[i].is_out()) continue;
    kinds.push_back(kind_of(arguments[i]));
    has_generator |= kinds.back() == ArgKind::kGenerator;
  }
  for (const c10::Argument& result : handle.schema().returns()) {
    if (result.alias_info() == nullptr) ++returned;
  }
  writes_several = written.size() > 1;
  for (size_t i : written) writes_several |= i < kinds.size() && kinds[i] == ArgKind::kTensorList;
  factory = form == Form::kOut && functional == handle;
  if (row->name == "native_batch_norm") written = {3, 4};  // its schema does not say that it updates them
}

std::vector<Operator> operators_of_table() {
  Overloads overloads;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) == 0) overloads[name.name].push_back(name.overload_name);
  }
  std::vector<Operator> all;
  for (const lowering::Row& row : lowering::table()) {
    const auto [base, overload] = split_name(row.name);
    auto named = find_schema(base, overload);
    // Rows for operators that this release of torch does not have are left out.
    if (!named) continue;
    const bool mutates = named->schema().is_mutable() || row.name == "native_batch_norm";
    all.emplace_back(*named, *named, &row, mutates ? Form::kMutating : Form::kFunctional);
    if (mutates) continue;
    if (is_factory(named->schema())) {
      // The functional form is PyTorch's own: an empty tensor handed to the out= form.
      all.pop_back();
      if (auto out = find_out_form(*named, overloads)) all.emplace_back(*out, *out, &row, Form::kOut);
      continue;
    }
    if (auto inplace = find_schema(base + "_", overload);
        inplace && inplace->schema().is_mutable() && same_inputs(named->schema(), inplace->schema())) {
      all.emplace_back(*inplace, *named, &row, Form::kInplace);
    }
    if (auto out = find_out_form(*named, overloads)) all.emplace_back(*out, *named, &row, Form::kOut);
  }
  return all;
}

}  // namespace tpu::aten
