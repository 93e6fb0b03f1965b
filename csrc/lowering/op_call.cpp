#include "lowering/op_call.h"

#include "lowering/helpers.h"

namespace tpu::lowering {
namespace {

const char* kind_of(const Arg& arg) {
  static constexpr const char* kNames[] = {"None",        "a tensor", "a scalar", "a tensor list", "a scalar list",
                                           "a bool",      "an int",   "a float",  "an int list",   "a float list",
                                           "a bool list", "a string", "a dtype"};
  static_assert(std::size(kNames) == std::variant_size_v<Arg>);
  return kNames[arg.index()];
}

bool fits(int64_t value, DType dtype) {
  const int bits = static_cast<int>(byte_size(dtype)) * 8;
  if (is_unsigned_integer(dtype)) return value >= 0 && (bits == 64 || value < (int64_t{1} << bits));
  return bits == 64 || (value >= -(int64_t{1} << (bits - 1)) && value < (int64_t{1} << (bits - 1)));
}

Value known_value(Builder& builder, const Scalar& scalar, DType dtype) {
  const TensorType type{dtype, {}};
  if (scalar.is_integral()) {
    if (!is_integer(dtype) || fits(scalar.i, dtype)) return builder.constant(scalar.i, type);
    // PyTorch wraps a number that the element type cannot hold.
    return convert_like_torch(builder.constant(scalar.i, TensorType{DType::kS64, {}}), dtype);
  }
  if (scalar.kind == Scalar::Kind::kComplex && is_complex(dtype)) return builder.constant(scalar.z, type);
  const double value = scalar.z.real();
  if (!is_integer(dtype)) return builder.constant(value, type);
  return convert_like_torch(builder.constant(value, TensorType{DType::kF64, {}}), dtype);
}

Value scalar_value(Builder& builder, const ScalarArg& scalar, DType dtype) {
  return scalar.known ? known_value(builder, *scalar.known, dtype) : convert_like_torch(scalar.operand, dtype);
}

}  // namespace

bool OpCall::is_none(size_t i) const { return std::holds_alternative<None>(args_.at(i)); }
bool OpCall::is_scalar(size_t i) const { return std::holds_alternative<ScalarArg>(args_.at(i)); }

Value OpCall::tensor(size_t i) const {
  if (const auto* value = std::get_if<Value>(&args_.at(i))) return *value;
  if (const auto* scalar = std::get_if<ScalarArg>(&args_[i])) return scalar_value(builder_, *scalar, scalar->dtype);
  mismatch(i, "a tensor");
}

std::optional<Value> OpCall::optional_tensor(size_t i) const {
  if (is_none(i)) return std::nullopt;
  return tensor(i);
}

Value OpCall::operand(size_t i, DType dtype) const {
  const Arg& arg = args_.at(i);
  if (const auto* value = std::get_if<Value>(&arg)) return convert_like_torch(*value, dtype);
  if (const auto* scalar = std::get_if<ScalarArg>(&arg)) return scalar_value(builder_, *scalar, dtype);
  // Plain numbers stand where the schema says int, float or bool rather than Scalar.
  if (const auto* number = std::get_if<double>(&arg)) {
    return known_value(builder_, {Scalar::Kind::kDouble, 0, *number}, dtype);
  }
  if (const auto* number = std::get_if<int64_t>(&arg))
    return known_value(builder_, {Scalar::Kind::kInt, *number}, dtype);
  if (const auto* flag = std::get_if<bool>(&arg)) return known_value(builder_, {Scalar::Kind::kBool, *flag}, dtype);
  mismatch(i, "a tensor or a number");
}

std::optional<Scalar> OpCall::known(size_t i) const {
  const Arg& arg = args_.at(i);
  if (const auto* scalar = std::get_if<ScalarArg>(&arg)) return scalar->known;
  if (const auto* number = std::get_if<double>(&arg)) return Scalar{Scalar::Kind::kDouble, 0, *number};
  if (const auto* number = std::get_if<int64_t>(&arg)) return Scalar{Scalar::Kind::kInt, *number};
  if (const auto* flag = std::get_if<bool>(&arg)) return Scalar{Scalar::Kind::kBool, *flag};
  return std::nullopt;
}

DType OpCall::dtype(size_t i) const {
  const Arg& arg = args_.at(i);
  if (const auto* value = std::get_if<Value>(&arg)) return value->dtype();
  if (const auto* scalar = std::get_if<ScalarArg>(&arg)) return scalar->dtype;
  mismatch(i, "a tensor or a scalar");
}

std::vector<std::optional<Value>> OpCall::optional_tensors(size_t i) const {
  if (const auto* list = std::get_if<std::vector<std::optional<Value>>>(&args_.at(i))) return *list;
  mismatch(i, "a tensor list");
}

std::vector<Value> OpCall::tensors(size_t i) const {
  std::vector<Value> values;
  for (const auto& value : optional_tensors(i)) {
    if (!value) mismatch(i, "a tensor list without None");
    values.push_back(*value);
  }
  return values;
}

size_t OpCall::list_size(size_t i) const {
  return std::visit(
      [&](const auto& arg) -> size_t {
        if constexpr (requires { arg.size(); } && !std::is_same_v<std::decay_t<decltype(arg)>, std::string>) {
          return arg.size();
        } else {
          mismatch(i, "a list");
        }
      },
      args_.at(i));
}

Value OpCall::list_operand(size_t i, size_t k, DType dtype) const {
  const Arg& arg = args_.at(i);
  if (const auto* list = std::get_if<std::vector<ScalarArg>>(&arg)) return scalar_value(builder_, list->at(k), dtype);
  if (const auto* list = std::get_if<std::vector<double>>(&arg)) {
    return known_value(builder_, {Scalar::Kind::kDouble, 0, list->at(k)}, dtype);
  }
  mismatch(i, "a scalar list");
}

bool OpCall::boolean(size_t i) const {
  if (const auto* value = std::get_if<bool>(&args_.at(i))) return *value;
  if (const auto scalar = known(i)) return scalar->as_double() != 0;
  mismatch(i, "a bool");
}

int64_t OpCall::integer(size_t i) const {
  if (const auto* value = std::get_if<int64_t>(&args_.at(i))) return *value;
  if (const auto scalar = known(i); scalar && scalar->is_integral()) return scalar->i;
  mismatch(i, "an int");
}

double OpCall::real(size_t i) const {
  if (const auto scalar = known(i)) return scalar->as_double();
  mismatch(i, "a known number");
}

Dims OpCall::ints(size_t i) const {
  if (const auto* list = std::get_if<Dims>(&args_.at(i))) return *list;
  if (const auto* one = std::get_if<int64_t>(&args_[i])) return Dims{*one};
  mismatch(i, "an int list");
}

std::vector<double> OpCall::reals(size_t i) const {
  if (const auto* list = std::get_if<std::vector<double>>(&args_.at(i))) return *list;
  mismatch(i, "a float list");
}

std::vector<bool> OpCall::booleans(size_t i) const {
  if (const auto* list = std::get_if<std::vector<bool>>(&args_.at(i))) return *list;
  mismatch(i, "a bool list");
}

std::string OpCall::string(size_t i) const {
  if (const auto* text = std::get_if<std::string>(&args_.at(i))) return *text;
  mismatch(i, "a string");
}

DType OpCall::dtype_arg(size_t i) const {
  if (const auto* dtype = std::get_if<DType>(&args_.at(i))) return *dtype;
  mismatch(i, "a dtype");
}

std::optional<Value> OpCall::present_size(size_t i, int64_t dim, size_t k) const {
  for (const PresentSize& size : present_sizes_) {
    if (size.argument == i && size.element == k && size.dim == dim) return size.size;
  }
  return std::nullopt;
}

std::optional<Value> OpCall::present_count(size_t i, std::span<const int64_t> axes) const {
  std::optional<Value> count;
  int64_t others = 1;
  for (int64_t axis : axes) {
    if (const auto size = present_size(i, axis)) {
      count = count ? stablehlo::multiply(*count, *size) : *size;
    } else {
      others *= tensor(i).dim(static_cast<size_t>(axis));
    }
  }
  if (!count) return std::nullopt;
  return stablehlo::multiply(*count, builder().constant(others, {DType::kS64, {}}));
}

Value OpCall::without_rest(size_t i, Value x, Value rest) const {
  for (const PresentSize& size : present_sizes_) {
    if (size.argument != i || size.element != 0) continue;
    const TensorType type{DType::kS64, x.dims()};
    const Value inside =
        stablehlo::compare(stablehlo::iota(builder(), type, size.dim),
                           stablehlo::broadcast_in_dim(size.size, x.dims(), {}), stablehlo::Compare::kLt);
    x = stablehlo::select(inside, x, stablehlo::broadcast_in_dim(rest, x.dims(), {}));
  }
  return x;
}

const RandomState& OpCall::random() const {
  if (random_) return *random_;
  throw Error(Code::kInternal, std::string(name_) + ": draws random numbers but its row has no random_factor");
}

void OpCall::check(Value bad, Code code, std::string message) const {
  ensure(bad.dtype() == DType::kBool && bad.rank() == 0, "OpCall::check: the condition must be a 0-d bool");
  checks_.push_back({bad, code, std::move(message)});
}

void OpCall::mismatch(size_t i, const char* wanted) const {
  throw Error(Code::kInternal, std::string(name_) + ": argument " + std::to_string(i) + " is " + kind_of(args_.at(i)) +
                                   ", the lowering asks for " + wanted);
}

}  // namespace tpu::lowering
