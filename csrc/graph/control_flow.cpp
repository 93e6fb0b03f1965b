#include "graph/control_flow.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "graph/capture.h"
#include "graph/program.h"
#include "lowering/helpers.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::graph {
namespace hlo = stablehlo;

using Kind = ControlFlow::Kind;
using Part = ControlFlow::Part;
using Checks = std::vector<LoweredNode::Check>;

namespace {

// Random words of a part: seed and offset of each of its draws.
using Words = std::span<const Value>;

void append(std::vector<Value>& list, std::span<const Value> more) {
  list.insert(list.end(), more.begin(), more.end());
}

class Lowering {
 public:
  Lowering(const Plan& plan, hlo::Builder& builder, const NodeValues& values, const LayoutPolicy& policy)
      : flow_(*plan.control_flow), plan_(plan), builder_(builder), values_(values), policy_(policy) {}

  LoweredNode branch() const {
    const Part &on_true = flow_.parts[0], &on_false = flow_.parts[1];
    const auto operands = values_.inputs.subspan(1);
    std::vector<TensorType> types;
    for (const OutputTemplate& output : plan_.outputs) types.push_back(output.base);
    types.insert(types.end(), on_true.checks + on_false.checks, TensorType{DType::kBool, {}});
    Checks checks;
    const auto region = [&](const Part& part, size_t flags_before, size_t flags_after) -> hlo::Region {
      return [&, flags_before, flags_after](std::span<const Value>) {
        std::vector<Value> yielded;
        const std::vector<Value> flags = lower_into(yielded, part, operands, values_.inputs, {}, &checks);
        append(yielded, unset(flags_before));
        append(yielded, flags);
        append(yielded, unset(flags_after));
        return yielded;
      };
    };
    return node_of(hlo::if_else(values_.inputs[0], region(on_true, 0, on_false.checks),
                                region(on_false, on_true.checks, 0), types),
                   std::move(checks));
  }

  // Carries: all inputs, of which only the first change; a flag per check; and where the condition has checks itself,
  // whether it holds.
  LoweredNode loop() const {
    const Part &condition = flow_.parts[0], &body = flow_.parts[1];
    const size_t inputs = values_.inputs.size(), flags = condition.checks + body.checks;
    const bool ahead = condition.checks > 0;
    Checks checks;
    std::vector<Value> state(values_.inputs.begin(), values_.inputs.end());
    std::vector<Value> goes_on;
    append(state, ahead ? lower_into(goes_on, condition, values_.inputs, values_.inputs, {}, &checks) : goes_on);
    append(state, unset(body.checks));
    append(state, goes_on);

    const auto test = [&](std::span<const Value> now) {
      std::vector<Value> holds;
      if (ahead) {
        holds.push_back(now.back());
      } else {
        lower_into(holds, condition, now, now, {}, nullptr);
      }
      for (Value flag : now.subspan(inputs, flags)) holds[0] = hlo::bit_and(holds[0], hlo::logical_not(flag));
      return holds;
    };
    const auto step = [&](std::span<const Value> now) {
      std::vector<Value> next, condition_flags, holds;
      const std::vector<Value> body_flags = lower_into(next, body, now, now, {}, &checks);
      append(next, now.subspan(flow_.carried, inputs - flow_.carried));
      if (ahead) condition_flags = lower_into(holds, condition, next, next, {}, nullptr);
      append(condition_flags, body_flags);
      for (size_t i = 0; i < flags; ++i) next.push_back(hlo::bit_or(now[inputs + i], condition_flags[i]));
      append(next, holds);
      return next;
    };
    std::vector<Value> results = hlo::while_loop(state, test, step);
    results.erase(results.begin() + flow_.carried, results.begin() + static_cast<ptrdiff_t>(inputs));
    results.resize(flow_.carried + flags);
    return node_of(std::move(results), std::move(checks));
  }

  // Carries: the carried values, the results, and a flag per check.
  LoweredNode scan() const {
    const Part& body = flow_.parts[0];
    const size_t outputs = plan_.outputs.size();
    Checks checks;
    std::vector<Value> state(values_.inputs.begin(), values_.inputs.begin() + flow_.carried);
    for (size_t i = flow_.carried; i < outputs; ++i) state.push_back(zeros(plan_.outputs[i].base));
    append(state, unset(body.checks));
    std::vector<Value> fixed(values_.inputs.begin() + flow_.carried, values_.inputs.end());
    append(fixed, values_.words);

    const auto step = [&](Value index, std::span<const Value> now, std::span<const Value> same) {
      std::vector<Value> inputs(now.begin(), now.begin() + flow_.carried);
      append(inputs, same.first(values_.inputs.size() - flow_.carried));
      std::vector<Value> arguments = inputs;
      for (uint32_t i = 0; i < flow_.sliced; ++i)
        arguments[flow_.carried + i] = slice(inputs[flow_.carried + i], index);
      const std::vector<Value> words = words_at(index, same.last(values_.words.size()));
      std::vector<Value> next;
      const std::vector<Value> flags = lower_into(next, body, arguments, inputs, words, &checks);
      for (size_t i = flow_.carried; i < outputs; ++i) next[i] = with_slice(now[i], next[i], index);
      for (size_t i = 0; i < flags.size(); ++i) next.push_back(hlo::bit_or(now[outputs + i], flags[i]));
      return next;
    };
    const Value length = builder_.constant(flow_.length, {DType::kS32, {}});
    return node_of(lowering::counted_loop(length, state, fixed, step), std::move(checks));
  }

 private:
  /// Appends a part's results to `results`; returns its flags, and what they are of in `checks`. `inputs` are the
  /// plan's.
  std::vector<Value> lower_into(std::vector<Value>& results, const Part& part, std::span<const Value> arguments,
                                std::span<const Value> inputs, Words words, Checks* checks) const {
    std::vector<Value> given;
    uint32_t constant = part.first_constant;
    for (int32_t source : part.graph->sources) {
      given.push_back(source < 0 ? inputs[constant++] : arguments[static_cast<size_t>(source)]);
    }
    LoweredNode node = lower_body(*part.graph->plan.body, builder_, {given, words}, policy_);
    ensure(node.checks.size() == part.checks, "a part of a control flow has other checks than were counted");
    append(results, node.outputs);
    std::vector<Value> flags;
    for (LoweredNode::Check& check : node.checks) {
      flags.push_back(check.bad);
      if (checks != nullptr) checks->push_back(std::move(check));
    }
    return flags;
  }

  LoweredNode node_of(std::vector<Value> results, Checks checks) const {
    const auto first_flag = results.begin() + static_cast<ptrdiff_t>(plan_.outputs.size());
    LoweredNode node;
    for (size_t i = 0; i < checks.size(); ++i) checks[i].bad = first_flag[static_cast<ptrdiff_t>(i)];
    node.checks = std::move(checks);
    results.erase(first_flag, results.end());
    node.outputs = std::move(results);
    return node;
  }

  std::vector<Value> unset(size_t count) const {
    if (count == 0) return {};
    return std::vector<Value>(count, builder_.constant(int64_t{0}, {DType::kBool, {}}));
  }
  Value zeros(const TensorType& type) const {
    return hlo::broadcast_in_dim(lowering::scalar(builder_, 0.0, type.dtype), type.dims, {});
  }
  std::vector<Value> start_of(Value index, size_t rank) const {
    std::vector<Value> start(rank, builder_.constant(int64_t{0}, index.type()));
    start[0] = index;
    return start;
  }
  Value slice(Value array, Value index) const {
    Dims sizes = array.dims();
    sizes[0] = 1;
    const Value cut = hlo::dynamic_slice(array, start_of(index, sizes.size()), sizes);
    return hlo::reshape(cut, Dims(sizes.begin() + 1, sizes.end()));
  }
  Value with_slice(Value array, Value part, Value index) const {
    Dims sizes = array.dims();
    sizes[0] = 1;
    return hlo::dynamic_update_slice(array, hlo::reshape(part, sizes), start_of(index, sizes.size()));
  }
  /// As if the slices were computed one after the other: each goes on where the one before it stopped.
  std::vector<Value> words_at(Value index, Words drawn) const {
    if (drawn.empty()) return {};
    const TensorType word{DType::kS64, {}};
    const auto blocks = [&](uint64_t count) { return builder_.constant(static_cast<int64_t>(count), word); };
    const std::vector<uint64_t>& draws = flow_.parts[0].graph->blocks;
    uint64_t of_slice = 0;
    for (uint64_t drawn : draws) of_slice += drawn;
    Value offset = hlo::add(drawn[1], hlo::multiply(hlo::convert(index, DType::kS64), blocks(of_slice)));
    std::vector<Value> words;
    for (uint64_t count : draws) {
      words.insert(words.end(), {drawn[0], offset});
      offset = hlo::add(offset, blocks(count));
    }
    return words;
  }

  const ControlFlow& flow_;
  const Plan& plan_;
  hlo::Builder& builder_;
  const NodeValues& values_;
  const LayoutPolicy& policy_;
};

}  // namespace

namespace {

uint32_t count_checks(const CapturedGraph& graph) {
  hlo::Builder builder;
  std::vector<Value> inputs, words;
  for (const TensorType& type : graph.plan.inputs) inputs.push_back(builder.parameter(type));
  for (size_t i = 0; i < graph.plan.slots.size(); ++i) words.push_back(builder.parameter({DType::kS64, {}}));
  return static_cast<uint32_t>(lower_body(*graph.plan.body, builder, {inputs, words}, {}).checks.size());
}

}  // namespace

ControlFlow::Part part_of(const CapturedGraph& graph) {
  // A step has the same parts at each of its calls.
  static auto* const counted = new std::unordered_map<const CapturedGraph*, uint32_t>;
  static std::mutex mutex;
  {
    std::lock_guard lock(mutex);
    if (const auto found = counted->find(&graph); found != counted->end()) return {&graph, 0, found->second};
  }
  const uint32_t checks = count_checks(graph);
  std::lock_guard lock(mutex);
  counted->emplace(&graph, checks);
  return {&graph, 0, checks};
}

namespace {

std::unique_ptr<const Plan> make_plan(std::string name, ControlFlow flow, std::span<const TensorType> arguments) {
  auto plan = std::make_unique<Plan>();
  plan->id = next_plan_id();
  plan->name = std::move(name);
  plan->inputs.assign(arguments.begin(), arguments.end());
  for (Part& part : flow.parts) {
    ensure(part.graph->plan.slots.size() == 2 * part.graph->blocks.size(), "a part of a control flow has words");
    part.first_constant = static_cast<uint32_t>(plan->inputs.size());
    for (size_t i = 0; i < part.graph->sources.size(); ++i) {
      if (part.graph->sources[i] < 0) plan->inputs.push_back(part.graph->plan.inputs[i]);
    }
  }
  const Plan& results = flow.parts.back().graph->plan;
  for (size_t i = 0; i < results.outputs.size(); ++i) {
    TensorType type = results.outputs[i].base;
    if (flow.kind == Kind::kScan && i >= flow.carried) type.dims.insert(0, flow.length);
    const size_t rank = type.rank();
    plan->outputs.push_back({std::move(type), static_cast<uint32_t>(i), iota(rank), {}, {}, {}});
  }
  if (random_blocks(flow) > 0) {
    plan->random_slot = 0;
    plan->slots = {Slot::kInt, Slot::kInt};
  }
  plan->control_flow = std::make_shared<const ControlFlow>(std::move(flow));
  return plan;
}

}  // namespace

const Plan& control_flow_plan(std::string name, ControlFlow flow, std::span<const TensorType> arguments) {
  using Key = std::pair<std::string, std::vector<uint64_t>>;
  static auto* const plans = new std::map<Key, std::unique_ptr<const Plan>>;
  static std::mutex mutex;
  std::vector<uint64_t> key{static_cast<uint64_t>(flow.kind), flow.carried, flow.sliced,
                            static_cast<uint64_t>(flow.length)};
  for (const Part& part : flow.parts) key.push_back(part.graph->plan.id);
  for (const TensorType& type : arguments) {
    key.push_back(static_cast<uint64_t>(type.dtype));
    key.push_back(type.rank());
    for (int64_t size : type.dims) key.push_back(static_cast<uint64_t>(size));
  }
  std::lock_guard lock(mutex);
  std::unique_ptr<const Plan>& plan = (*plans)[{name, std::move(key)}];
  if (plan == nullptr) plan = make_plan(std::move(name), std::move(flow), arguments);
  return *plan;
}

uint64_t random_blocks(const ControlFlow& flow) {
  uint64_t blocks = 0;
  for (const Part& part : flow.parts) {
    for (uint64_t each : part.graph->blocks) blocks += each;
  }
  return blocks * static_cast<uint64_t>(flow.length);
}

LoweredNode lower_control_flow(const Plan& plan, hlo::Builder& builder, const NodeValues& values,
                               const LayoutPolicy& policy) {
  const Lowering lowering(plan, builder, values, policy);
  switch (plan.control_flow->kind) {
    case Kind::kBranch:
      return lowering.branch();
    case Kind::kWhile:
      return lowering.loop();
    case Kind::kScan:
      return lowering.scan();
  }
  return {};
}

}  // namespace tpu::graph
