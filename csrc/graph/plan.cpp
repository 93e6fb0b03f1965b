#include "graph/plan.h"

#include <atomic>

#include "graph/program.h"
#include "lowering/helpers.h"

namespace tpu::graph {
namespace hlo = stablehlo;
namespace {

class ArgumentBuilder {
 public:
  ArgumentBuilder(hlo::Builder& builder, const NodeValues& values) : builder_(builder), values_(values) {}

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
    return ref.layout.read(values_.inputs[ref.input], values_.words.subspan(ref.first_slot, ref.layout.start_count()));
  }
  lowering::ScalarArg scalar(const ScalarRef& ref) const {
    lowering::ScalarArg arg{ref.dtype, ref.known, {}};
    if (!ref.known) arg.operand = values_.words[ref.slot];
    return arg;
  }

  hlo::Builder& builder_;
  const NodeValues& values_;
};

void check_result(const Plan& plan, size_t index, Value value) {
  const TensorType& wanted = plan.results[index];
  if (value.type() == wanted) return;
  throw Error(Code::kInternal, "lowering of " + plan.name + " gives " + to_string(value.type()) + " for result " +
                                   std::to_string(index) + ", PyTorch's metadata says " + to_string(wanted));
}

Value make_output(const OutputTemplate& output, Value result, hlo::Builder& builder, const NodeValues& values,
                  const std::vector<Value>& earlier) {
  if (!output.replace) return hlo::reshape(hlo::transpose(result, output.order), output.base.dims);
  const auto& replace = *output.replace;
  const Value old = replace.after ? earlier[*replace.after] : replace.input ? values.inputs[*replace.input] : Value();
  Value value = lowering::convert_like_torch(result, replace.dtype);
  if (!(value.dims() == replace.sizes)) value = lowering::broadcast_to(value, replace.sizes);
  return replace.layout.write(builder, old, value,
                              values.words.subspan(replace.first_slot, replace.layout.start_count()));
}

}  // namespace

LoweredNode lower(const Plan& plan, hlo::Builder& builder, const NodeValues& values, const LayoutPolicy& policy) {
  if (plan.body != nullptr) return lower_body(*plan.body, builder, values, policy);
  std::vector<lowering::Arg> args;
  const ArgumentBuilder make_argument(builder, values);
  for (const ArgTemplate& arg : plan.args) args.push_back(std::visit(make_argument, arg));

  lowering::OpCall call(builder, plan.name, std::move(args), plan.results, plan.promoted);
  if (plan.random_slot) {
    const auto word = [&](uint32_t slot) { return hlo::bitcast_convert(values.words[slot], DType::kU64); };
    call.set_random({word(*plan.random_slot), word(*plan.random_slot + 1)});
  }
  const std::vector<Value> results = plan.row->lower(call);
  LoweredNode node;
  for (const OutputTemplate& output : plan.outputs) {
    if (output.result >= results.size() || !results[output.result].defined()) {
      throw Error(Code::kInternal, "lowering of " + plan.name + " gives no result " + std::to_string(output.result));
    }
    const Value result = results[output.result];
    if (output.result < plan.results.size()) check_result(plan, output.result, result);
    node.outputs.push_back(make_output(output, result, builder, values, node.outputs));
  }
  for (const auto& check : call.checks()) node.checks.push_back({check.bad, check.code, check.message, {}, {}});
  return node;
}

LayoutPolicy layout_policy(const std::string& platform) {
  const bool cpu = platform == "cpu";
  return {.barrier_after_heavy = cpu, .barrier_after_float16 = cpu};
}

uint64_t next_plan_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace tpu::graph
