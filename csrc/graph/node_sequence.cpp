#include "graph/node_sequence.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "graph/repeats.h"
#include "stablehlo/ops.h"

namespace tpu::graph {
namespace hlo = stablehlo;
namespace {

bool makes_float16(const Plan& plan) {
  return std::any_of(plan.outputs.begin(), plan.outputs.end(),
                     [](const OutputTemplate& output) { return output.base.dtype == DType::kF16; });
}

class NodeSequence {
 public:
  NodeSequence(hlo::Builder& builder, const Recording& recording, std::span<const Value> parameters,
               std::span<const Word> words, const OutputMask& wanted, const LayoutPolicy& policy)
      : builder_(builder),
        recording_(recording),
        parameters_(parameters),
        words_(words),
        wanted_(wanted),
        policy_(policy),
        alone_(recording.nodes.size() == 1) {
    all_.values.resize(output_end(static_cast<uint32_t>(recording.nodes.size())));
  }

  LoweredNodes emit() {
    const auto size = static_cast<uint32_t>(recording_.nodes.size());
    const bool share = !builder_.locations_enabled() && !builder_.in_region() && !policy_.neuron_limits;
    const std::vector<Part> parts = share ? repeated_parts() : std::vector<Part>();
    uint32_t n = 0;
    for (const Part& part : parts) {
      while (n < part.first) lower_node(n++);
      call(part);
      n += part.period;
    }
    while (n < size) lower_node(n++);
    return std::move(all_);
  }

 private:
  /// A stretch of nodes that others are like.
  struct Part {
    uint32_t first = 0, period = 0;
    std::vector<uint64_t> form;     // what the nodes are and what they read; equal for parts that share a function
    std::vector<Wire> values;       // arguments of the function, then
    std::vector<uint32_t> words;    // numbers of words
    std::vector<uint32_t> results;  // flat outputs that others read, relative to the first; of all parts of this form
  };
  struct Shared {
    hlo::Builder::Function function;
    std::vector<std::pair<uint32_t, LoweredNode::Check>> checks;  // by place in the part; their flags are results
  };

  uint32_t output_end(uint32_t node) const {
    if (node < recording_.nodes.size()) return recording_.nodes[node].first_output;
    if (recording_.nodes.empty()) return 0;
    const NodeRecord& last = recording_.nodes.back();
    return last.first_output + static_cast<uint32_t>(last.plan->outputs.size());
  }

  LoweredNode lowered(uint32_t n, std::span<const Value> inputs, std::span<const Value> words) const {
    const NodeRecord& node = recording_.nodes[n];
    if (builder_.locations_enabled()) builder_.set_location(node.plan->name, describe(node.location));
    LoweredNode result;
    try {
      result = lower(*node.plan, builder_, {inputs, words}, policy_, alone_);
    } catch (const Error& error) {
      const std::string where = describe(node.location);
      throw Error(error.code(), node.plan->name + (where.empty() ? "" : " at " + where) + ": " + error.what());
    }
    const bool barrier = policy_.barrier_after_float16 && makes_float16(*node.plan);
    if (barrier && !alone_) result.outputs = hlo::optimization_barrier(result.outputs);
    return result;
  }

  void lower_node(uint32_t n) {
    const NodeRecord& node = recording_.nodes[n];
    std::vector<Value> inputs, words;
    for (size_t i = 0; i < node.plan->inputs.size(); ++i) inputs.push_back(read(recording_.wires[node.first_wire + i]));
    for (size_t i = 0; i < node.plan->slots.size(); ++i) words.push_back(value_of(words_[node.first_word + i]));
    LoweredNode result = lowered(n, inputs, words);
    std::copy(result.outputs.begin(), result.outputs.end(), all_.values.begin() + node.first_output);
    for (auto& check : result.checks) all_.checks.emplace_back(n, std::move(check));
  }

  Value value_of(const Word& word) const {
    if (word.operand.defined()) return word.operand;
    const TensorType type{slot_dtype(word.slot), {}};
    if (word.slot == Slot::kInt) return builder_.constant(static_cast<int64_t>(word.bits), type);
    return builder_.constant(std::bit_cast<double>(word.bits), type);
  }

  Value read(const Wire& wire) const { return wire.external ? parameters_[wire.index] : all_.values[wire.index]; }

  std::vector<Part> repeated_parts() const {
    std::vector<uint64_t> kinds;
    for (const NodeRecord& node : recording_.nodes) kinds.push_back(node.plan->id);
    std::vector<Part> parts;
    for (const Repeat& repeat : find_repeats(kinds)) {
      for (uint32_t k = 0; k < repeat.count; ++k)
        parts.push_back(part_of(repeat.first + k * repeat.period, repeat.period));
    }
    // What only one part is like stays where it is.
    std::map<std::vector<uint64_t>, uint32_t> uses;
    for (const Part& part : parts) ++uses[part.form];
    std::erase_if(parts, [&](const Part& part) { return uses[part.form] == 1; });
    find_results(parts);
    return parts;
  }

  Part part_of(uint32_t first, uint32_t period) const {
    Part part{first, period, {period}, {}, {}, {}};
    const uint32_t own = recording_.nodes[first].first_output;
    constexpr uint64_t kOwn = uint64_t{1} << 62, kConstant = uint64_t{1} << 63;
    std::map<std::pair<bool, uint32_t>, size_t> values;
    std::map<uint32_t, size_t> operands;
    for (uint32_t n = first; n < first + period; ++n) {
      const NodeRecord& node = recording_.nodes[n];
      part.form.push_back(node.plan->id);
      for (size_t i = 0; i < node.plan->inputs.size(); ++i) {
        const Wire& wire = recording_.wires[node.first_wire + i];
        if (!wire.external && wire.index >= own) {
          part.form.push_back(kOwn | (wire.index - own));
          continue;
        }
        const auto [place, added] = values.emplace(std::pair(wire.external, wire.index), part.values.size());
        if (added) part.values.push_back(wire);
        part.form.push_back(place->second);
      }
      for (uint32_t word = node.first_word; word < node.first_word + node.plan->slots.size(); ++word) {
        if (!words_[word].operand.defined()) {
          part.form.push_back(kConstant);
          part.form.push_back(words_[word].bits);
          continue;
        }
        const auto [place, added] = operands.emplace(words_[word].operand.id(), part.words.size());
        if (added) part.words.push_back(word);
        part.form.push_back(place->second);
      }
    }
    return part;
  }

  void find_results(std::vector<Part>& parts) const {
    std::vector<size_t> owner(all_.values.size(), parts.size());  // of flat outputs
    std::vector<bool> read_by_others(all_.values.size(), false);
    for (size_t p = 0; p < parts.size(); ++p) {
      const uint32_t end = output_end(parts[p].first + parts[p].period);
      std::fill(owner.begin() + output_end(parts[p].first), owner.begin() + end, p);
    }
    for (const NodeRecord& node : recording_.nodes) {
      const size_t reader = node.plan->outputs.empty() ? parts.size() : owner[node.first_output];
      for (size_t i = 0; i < node.plan->inputs.size(); ++i) {
        const Wire& wire = recording_.wires[node.first_wire + i];
        if (wire.external) continue;
        if (owner[wire.index] != reader || reader == parts.size()) read_by_others[wire.index] = true;
      }
    }
    std::map<std::vector<uint64_t>, std::set<uint32_t>> results;
    for (const Part& part : parts) {
      const uint32_t begin = output_end(part.first), end = output_end(part.first + part.period);
      for (uint32_t flat = begin; flat < end; ++flat) {
        if (read_by_others[flat] || test(wanted_, flat)) results[part.form].insert(flat - begin);
      }
    }
    for (Part& part : parts) part.results.assign(results[part.form].begin(), results[part.form].end());
  }

  void call(const Part& part) {
    const auto known = shared_.find(part.form);
    const Shared& shared =
        known != shared_.end() ? known->second : shared_.emplace(part.form, share(part)).first->second;
    std::vector<Value> operands;
    for (const Wire& wire : part.values) operands.push_back(read(wire));
    for (uint32_t word : part.words) operands.push_back(words_[word].operand);
    const std::vector<Value> made = builder_.call(shared.function, operands);
    const uint32_t begin = output_end(part.first);
    for (size_t i = 0; i < part.results.size(); ++i) all_.values[begin + part.results[i]] = made[i];
    for (size_t i = 0; i < shared.checks.size(); ++i) {
      LoweredNode::Check check = shared.checks[i].second;
      check.bad = made[part.results.size() + i];
      all_.checks.emplace_back(part.first + shared.checks[i].first, std::move(check));
    }
  }

  // The function of a part.
  Shared share(const Part& part) const {
    Shared shared;
    std::vector<TensorType> types;
    for (const Wire& wire : part.values) types.push_back(read(wire).type());
    for (uint32_t word : part.words) types.push_back(words_[word].operand.type());
    const uint32_t begin = output_end(part.first);
    shared.function = builder_.function(types, [&](std::span<const Value> arguments) {
      std::map<std::pair<bool, uint32_t>, Value> given;
      std::map<uint32_t, Value> operands;
      for (size_t i = 0; i < part.values.size(); ++i) {
        given.emplace(std::pair(part.values[i].external, part.values[i].index), arguments[i]);
      }
      for (size_t i = 0; i < part.words.size(); ++i) {
        operands.emplace(words_[part.words[i]].operand.id(), arguments[part.values.size() + i]);
      }
      std::vector<Value> own, results;
      for (uint32_t n = part.first; n < part.first + part.period; ++n) {
        const NodeRecord& node = recording_.nodes[n];
        std::vector<Value> inputs, words;
        for (size_t i = 0; i < node.plan->inputs.size(); ++i) {
          const Wire& wire = recording_.wires[node.first_wire + i];
          const bool inside = !wire.external && wire.index >= begin;
          inputs.push_back(inside ? own[wire.index - begin] : given.at({wire.external, wire.index}));
        }
        for (size_t i = 0; i < node.plan->slots.size(); ++i) {
          const Word& word = words_[node.first_word + i];
          words.push_back(word.operand.defined() ? operands.at(word.operand.id()) : value_of(word));
        }
        LoweredNode result = lowered(n, inputs, words);
        own.insert(own.end(), result.outputs.begin(), result.outputs.end());
        for (auto& check : result.checks) shared.checks.emplace_back(n - part.first, std::move(check));
      }
      for (uint32_t result : part.results) results.push_back(own[result]);
      for (const auto& [place, check] : shared.checks) results.push_back(check.bad);
      return results;
    });
    return shared;
  }

  hlo::Builder& builder_;
  const Recording& recording_;
  const std::span<const Value> parameters_;
  const std::span<const Word> words_;
  const OutputMask& wanted_;
  const LayoutPolicy& policy_;
  const bool alone_;
  LoweredNodes all_;
  std::map<std::vector<uint64_t>, Shared> shared_;
};

}  // namespace

LoweredNodes lower_nodes(hlo::Builder& builder, const Recording& recording, std::span<const Value> parameters,
                         std::span<const Word> words, const OutputMask& wanted, const LayoutPolicy& policy) {
  return NodeSequence(builder, recording, parameters, words, wanted, policy).emit();
}

}  // namespace tpu::graph
