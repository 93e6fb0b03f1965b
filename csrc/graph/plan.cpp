#include "graph/plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>

#include "graph/control_flow.h"
#include "graph/program.h"
#include "lowering/helpers.h"

namespace tpu::graph {
namespace hlo = stablehlo;
namespace {

class ArgumentBuilder {
 public:
  ArgumentBuilder(hlo::Builder& builder, const NodeValues& values, const LayoutPolicy& policy)
      : builder_(builder), values_(values), policy_(policy) {}

  lowering::Arg operator()(const TensorRef& ref) const { return tensor(ref); }
  lowering::Arg operator()(const UnreadTensor& unread) const { return builder_.constant(0.0, unread.type); }
  lowering::Arg operator()(const ScalarRef& ref) const { return scalar(ref); }
  lowering::Arg operator()(const std::vector<std::optional<TensorRef>>& refs) const {
    std::vector<std::optional<Value>> list;
    for (const auto& ref : refs) list.push_back(ref ? std::optional<Value>(tensor(*ref)) : std::nullopt);
    return list;
  }
  lowering::Arg operator()(const std::vector<ScalarRef>& refs) const {
    std::vector<lowering::ScalarArg> list;
    for (const auto& ref : refs) list.push_back(scalar(ref));
    return list;
  }
  template <typename T>
  lowering::Arg operator()(const T& attribute) const {
    return attribute;
  }

 private:
  Value tensor(const TensorRef& ref) const {
    const auto starts = values_.words.subspan(ref.first_slot, ref.layout.start_count());
    const Value value = ref.layout.read(values_.inputs[ref.input], starts);
    if (ref.filled == 0) return value;
    const Value fill = builder_.constant(0.0, {value.dtype(), {}});
    const Value filled = replace_behind(value, ref.present, ref.filled, fill_value(ref, fill));
    // XLA:CPU would take a transpose out of it and into a product of narrow floats, for which it has no kernel then.
    const bool narrow = filled.dtype() == DType::kBF16 || filled.dtype() == DType::kF16;
    if (!policy_.barrier_after_heavy || !narrow) return filled;
    const Value operands[] = {filled};
    return hlo::optimization_barrier(operands)[0];
  }
  Value fill_value(const TensorRef& ref, Value zero) const {
    switch (ref.fill) {
      case lowering::Fill::kZero:
        return zero;
      case lowering::Fill::kOne:
        return builder_.constant(int64_t{1}, zero.type());
      case lowering::Fill::kLowest:
        return hlo::neutral(builder_, hlo::Reducer::kMaximum, zero.dtype());
      case lowering::Fill::kHighest:
        return hlo::neutral(builder_, hlo::Reducer::kMinimum, zero.dtype());
      case lowering::Fill::kNumber:
        return builder_.constant(ref.fill_number, zero.type());
    }
    return zero;
  }
  /// `value` with `fill` (0-d) where an index of one of `dims` is not below its present size.
  Value replace_behind(Value value, std::span<const TensorRef::Present> present, uint64_t dims, Value fill) const {
    Value behind;
    for (const TensorRef::Present& size : present) {
      if ((dims >> size.dim & 1) == 0) continue;
      const Dims& sizes = value.dims();
      const Value index = hlo::iota(builder_, {DType::kS64, sizes}, size.dim);
      const Value end = hlo::broadcast_in_dim(values_.words[size.slot], sizes, {});
      const Value here = hlo::compare(index, end, hlo::Compare::kGe);
      behind = behind.defined() ? hlo::bit_or(behind, here) : here;
    }
    if (!behind.defined()) return value;
    return hlo::select(behind, hlo::broadcast_in_dim(fill, value.dims(), {}), value);
  }

 public:
  /// For tests: see OutputTemplate::poisoned.
  Value poison(Value value, std::span<const TensorRef::Present> present) const {
    const TensorType number{value.dtype(), {}};
    const Value fill = is_floating(value.dtype()) || is_complex(value.dtype())
                           ? builder_.constant(std::numeric_limits<double>::quiet_NaN(), number)
                           : builder_.constant(int64_t{value.dtype() == DType::kBool ? 1 : 113}, number);
    return replace_behind(value, present, ~uint64_t{0}, fill);
  }
  std::vector<lowering::OpCall::PresentSize> present_sizes(const std::vector<ArgTemplate>& args) const {
    std::vector<lowering::OpCall::PresentSize> sizes;
    const auto add = [&](size_t argument, size_t element, const TensorRef& ref) {
      for (const auto& [dim, slot] : ref.present) sizes.push_back({argument, element, dim, values_.words[slot]});
    };
    for (size_t i = 0; i < args.size(); ++i) {
      if (const auto* ref = std::get_if<TensorRef>(&args[i])) add(i, 0, *ref);
      if (const auto* list = std::get_if<std::vector<std::optional<TensorRef>>>(&args[i])) {
        for (size_t k = 0; k < list->size(); ++k) {
          if ((*list)[k]) add(i, k, *(*list)[k]);
        }
      }
    }
    return sizes;
  }

 private:
  lowering::ScalarArg scalar(const ScalarRef& ref) const {
    lowering::ScalarArg arg{ref.dtype, ref.known, {}};
    if (!ref.known) arg.operand = values_.words[ref.slot];
    return arg;
  }

  hlo::Builder& builder_;
  const NodeValues& values_;
  const LayoutPolicy& policy_;
};

void check_result(const Plan& plan, size_t index, Value value) {
  const TensorType& wanted = plan.results[index];
  if (value.type() == wanted) return;
  throw Error(Code::kInternal, "lowering of " + plan.name + " gives " + to_string(value.type()) + " for result " +
                                   std::to_string(index) + ", PyTorch's metadata says " + to_string(wanted));
}

// Cuts off or adds what stands behind the elements of a bounded result.
Value resized(Value value, const Dims& dims) {
  Dims none(dims.size(), 0), ones(dims.size(), 1), more(dims.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) more[i] = std::max<int64_t>(0, dims[i] - value.dim(i));
  if (more != none) value = hlo::pad(value, value.builder().constant(0.0, {value.dtype(), {}}), none, more, none);
  return hlo::slice(value, none, dims, ones);
}

Value make_output(const OutputTemplate& output, Value result, hlo::Builder& builder, const NodeValues& values,
                  const std::vector<Value>& earlier) {
  if (!output.replace) {
    const Value ordered = hlo::transpose(result, output.order);
    return ordered.type().numel() == output.base.numel() ? hlo::reshape(ordered, output.base.dims)
                                                         : resized(ordered, output.base.dims);
  }
  const auto& replace = *output.replace;
  const Value old = replace.after ? earlier[*replace.after] : replace.input ? values.inputs[*replace.input] : Value();
  Value value = lowering::convert_like_torch(result, replace.dtype);
  if (!(value.dims() == replace.sizes)) value = lowering::broadcast_to(value, replace.sizes);
  std::vector<Value> present(replace.sizes.size());
  for (const auto& [dim, slot] : replace.present) present[dim] = values.words[slot];
  return replace.layout.write(builder, old, value,
                              values.words.subspan(replace.first_slot, replace.layout.start_count()), present);
}

// A barrier after those results that become outputs.
void keep_whole(const Plan& plan, std::vector<Value>& results) {
  std::vector<size_t> places;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto wanted = [&](const OutputTemplate& output) { return output.result == i; };
    const bool output = std::any_of(plan.outputs.begin(), plan.outputs.end(), wanted);
    if (output && results[i].defined()) places.push_back(i);
  }
  std::vector<Value> kept;
  for (size_t place : places) kept.push_back(results[place]);
  kept = hlo::optimization_barrier(kept);
  for (size_t k = 0; k < places.size(); ++k) results[places[k]] = kept[k];
}

}  // namespace

LoweredNode lower(const Plan& plan, hlo::Builder& builder, const NodeValues& values, const LayoutPolicy& policy,
                  bool alone) {
  if (plan.body != nullptr) return lower_body(*plan.body, builder, values, policy);
  if (plan.control_flow != nullptr) return lower_control_flow(plan, builder, values, policy);
  builder.set_dot_precision(plan.dot_precision);
  std::vector<lowering::Arg> args;
  const ArgumentBuilder make_argument(builder, values, policy);
  for (const ArgTemplate& arg : plan.args) args.push_back(std::visit(make_argument, arg));

  lowering::OpCall call(builder, plan.name, std::move(args), plan.results, plan.promoted);
  if (plan.random_slot) {
    const auto word = [&](uint32_t slot) { return hlo::bitcast_convert(values.words[slot], DType::kU64); };
    call.set_random({word(*plan.random_slot), word(*plan.random_slot + 1)});
  }
  if (plan.bounded) call.set_present_sizes(make_argument.present_sizes(plan.args));
  std::vector<Value> results = plan.row->lower(call);
  if (policy.barrier_after_heavy && plan.row->heavy && !alone) keep_whole(plan, results);
  LoweredNode node;
  for (const OutputTemplate& output : plan.outputs) {
    if (output.result >= results.size() || !results[output.result].defined()) {
      throw Error(Code::kInternal, "lowering of " + plan.name + " gives no result " + std::to_string(output.result));
    }
    const Value result = results[output.result];
    if (output.result < plan.results.size()) check_result(plan, output.result, result);
    const Value made = make_output(output, result, builder, values, node.outputs);
    node.outputs.push_back(output.poisoned.empty() ? made : make_argument.poison(made, output.poisoned));
  }
  for (const auto& check : call.checks()) node.checks.push_back({check.bad, check.code, check.message, {}, {}});
  return node;
}

LayoutPolicy layout_policy(const std::string& platform) {
  const bool cpu = platform == "cpu";
  return {.barrier_after_heavy = cpu, .barrier_after_float16 = cpu, .neuron_limits = platform == "neuron"};
}

namespace {

class KeyWriter {
 public:
  std::vector<uint64_t> take() { return std::move(key_); }

  void word(uint64_t word) { key_.push_back(word); }
  void write(bool value) { word(value); }
  void write(int64_t value) { word(static_cast<uint64_t>(value)); }
  void write(double value) { word(std::bit_cast<uint64_t>(value)); }
  void write(DType value) { word(static_cast<uint64_t>(value)); }
  void write(lowering::None) {}
  void write(const Dims& dims) {
    word(dims.size());
    for (int64_t dim : dims) write(dim);
  }
  void write(const std::string& text) {
    word(text.size());
    for (char c : text) word(static_cast<uint8_t>(c));
  }
  template <typename T>
  void write(const std::vector<T>& list) {
    word(list.size());
    for (const auto& element : list) write(static_cast<const T&>(element));
  }
  void write(const std::vector<bool>& list) {
    word(list.size());
    for (bool element : list) write(element);
  }
  template <typename T>
  void write(const std::optional<T>& value) {
    word(value.has_value());
    if (value) write(*value);
  }
  void write(uint32_t value) { word(value); }
  void write(Slot slot) { word(static_cast<uint64_t>(slot)); }
  void write(const TensorType& type) {
    write(type.dtype);
    write(type.dims);
  }
  void write(const lowering::Scalar& scalar) {
    word(static_cast<uint64_t>(scalar.kind));
    write(scalar.i);
    write(scalar.z.real());
    write(scalar.z.imag());
  }
  void write(const TensorRef::Present& present) { word(uint64_t{present.dim} << 32 | present.slot); }
  void write(const TensorRef& ref) {
    word(uint64_t{ref.input} << 32 | ref.first_slot);
    ref.layout.append_key(key_);
    write(ref.present);
    word(ref.filled);
    word(static_cast<uint64_t>(ref.fill));
    write(ref.fill_number);
  }
  void write(const UnreadTensor& unread) { write(unread.type); }
  void write(const ScalarRef& ref) {
    write(ref.dtype);
    write(ref.known);
    word(ref.slot);
  }
  void write(const OutputTemplate::Replace& replace) {
    write(replace.input);
    write(replace.after);
    replace.layout.append_key(key_);
    word(replace.first_slot);
    write(replace.dtype);
    write(replace.sizes);
    write(replace.present);
  }
  void write(const OutputTemplate& output) {
    write(output.base);
    word(output.result);
    write(output.order);
    write(output.replace);
    write(output.poisoned);
    write(output.takes_over);
  }

 private:
  std::vector<uint64_t> key_;
};

}  // namespace

std::vector<uint64_t> content_key(const Plan& plan) {
  KeyWriter writer;
  writer.write(plan.inputs);
  for (const ArgTemplate& argument : plan.args) {
    writer.word(argument.index());
    std::visit([&](const auto& given) { writer.write(given); }, argument);
  }
  writer.write(plan.results);
  writer.write(plan.promoted);
  writer.write(int64_t{plan.dot_precision});
  writer.write(plan.slots);
  writer.write(plan.random_slot);
  writer.write(plan.outputs);
  return writer.take();
}

lowering::Arg attribute_of(const ArgTemplate& argument) {
  return std::visit(
      [](const auto& given) -> lowering::Arg {
        using T = std::decay_t<decltype(given)>;
        if constexpr (std::is_same_v<T, TensorRef> || std::is_same_v<T, UnreadTensor>) {
          return Value();
        } else if constexpr (std::is_same_v<T, ScalarRef>) {
          return lowering::ScalarArg{given.dtype, given.known, {}};
        } else if constexpr (std::is_same_v<T, std::vector<std::optional<TensorRef>>> ||
                             std::is_same_v<T, std::vector<ScalarRef>>) {
          return lowering::None{};
        } else {
          return given;
        }
      },
      argument);
}

uint64_t next_plan_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace tpu::graph
