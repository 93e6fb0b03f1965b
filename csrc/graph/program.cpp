#include "graph/program.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "base/hash.h"
#include "graph/capture.h"
#include "graph/control_flow.h"
#include "graph/node_sequence.h"
#include "stablehlo/neuron_limits.h"
#include "stablehlo/ops.h"

namespace tpu::graph {
namespace hlo = stablehlo;
namespace {

// What a loaded executable of the CPU plugin takes, measured (docs/cache.md). No plugin says, and the figures need
// only be good enough to keep a long-lived process from growing.
constexpr size_t kMemoryOfAnyProgram = size_t{256} << 10;
constexpr size_t kMemoryPerByteOfText = 48;

bool includes(const OutputMask& larger, const OutputMask& smaller) {
  for (size_t i = 0; i < larger.size(); ++i) {
    if ((smaller[i] & ~larger[i]) != 0) return false;
  }
  return true;
}

// Run-time scalars of all nodes arrive packed, one vector per slot type; this hands them out in node order.
class PackedWords {
 public:
  PackedWords(hlo::Builder& builder, const Recording& recording) {
    int64_t counts[3] = {0, 0, 0};
    for (const NodeRecord& node : recording.nodes) {
      for (Slot slot : node.plan->slots) ++counts[static_cast<size_t>(slot)];
    }
    for (size_t i = 0; i < 3; ++i) {
      if (counts[i] > 0) vectors_[i] = builder.parameter({slot_dtype(static_cast<Slot>(i)), {counts[i]}});
    }
  }
  std::vector<Value> take(const Plan& plan) {
    std::vector<Value> words;
    for (Slot slot : plan.slots) {
      const auto i = static_cast<size_t>(slot);
      const int64_t at = next_[i]++;
      words.push_back(hlo::reshape(hlo::slice(vectors_[i], {at}, {at + 1}, {1}), {}));
    }
    return words;
  }

 private:
  Value vectors_[3];
  int64_t next_[3] = {0, 0, 0};
};

std::string label_of(const Recording& recording) {
  constexpr size_t kShown = 6;
  std::string label;
  for (size_t i = 0; i < recording.nodes.size() && i < kShown; ++i) {
    if (i != 0) label += "+";
    label += recording.nodes[i].plan->name;
  }
  if (recording.nodes.size() > kShown) label += "+... (" + std::to_string(recording.nodes.size()) + " ops)";
  return label;
}

void append_rows(std::string& rows, const Recording& recording) {
  for (const NodeRecord& node : recording.nodes) {
    if (node.plan->body != nullptr) {
      append_rows(rows, node.plan->body->recording);
      continue;
    }
    if (node.plan->control_flow != nullptr) {
      for (const ControlFlow::Part& part : node.plan->control_flow->parts) {
        append_rows(rows, part.graph->plan.body->recording);
      }
      continue;
    }
    if (!rows.empty()) rows += ' ';
    rows += node.plan->row->name;
  }
}

}  // namespace

DType slot_dtype(Slot slot) {
  switch (slot) {
    case Slot::kInt:
      return DType::kS64;
    case Slot::kFloat:
      return DType::kF32;
    case Slot::kDouble:
      return DType::kF64;
  }
  return DType::kS64;
}

bool test(const OutputMask& mask, size_t bit) {
  return bit / 64 < mask.size() && (mask[bit / 64] >> (bit % 64) & 1) != 0;
}

std::vector<Slot> slots_of(const Recording& recording) {
  std::vector<Slot> slots;
  for (const NodeRecord& node : recording.nodes) {
    slots.insert(slots.end(), node.plan->slots.begin(), node.plan->slots.end());
  }
  return slots;
}

void Recording::clear() {
  nodes.clear();
  wires.clear();
  words.clear();
  parameters.clear();
  outputs.clear();
  key.clear();
  hash = 0;
}

namespace {

// A program result that finally replaces a parameter, through any number of in-place nodes, may take over the
// parameter's memory.
std::optional<uint32_t> replaced_parameter(const Recording& recording, uint32_t flat_output) {
  for (;;) {
    const auto node = std::find_if(recording.nodes.rbegin(), recording.nodes.rend(),
                                   [&](const NodeRecord& n) { return n.first_output <= flat_output; });
    const OutputTemplate& output = node->plan->outputs[flat_output - node->first_output];
    if (output.replace && output.replace->after) {
      flat_output = node->first_output + *output.replace->after;
      continue;
    }
    const std::optional<uint32_t> input = output.replace ? output.replace->input : output.takes_over;
    if (!input) return std::nullopt;
    const Wire& wire = recording.wires[node->first_wire + *input];
    if (wire.external) return wire.index;
    flat_output = wire.index;
  }
}

// Of a sequence of nodes the queue finds the one at fault by running them one by one.
void refuse_for_neuron(const Recording& recording, const std::string& label, const std::string& program) {
  std::string reasons;
  for (const std::string& reason : hlo::neuron_refusals(program)) reasons += (reasons.empty() ? "" : ", ") + reason;
  if (reasons.empty()) return;
  const NodeRecord& node = recording.nodes.back();
  const std::string where = describe(node.location);
  throw Error(Code::kNotImplemented, (recording.nodes.size() == 1 ? node.plan->name : label) +
                                         (where.empty() ? "" : " at " + where) +
                                         ": the Neuron compiler does not take this operator (" + reasons +
                                         "); docs/operators.md lists what it takes. Compute it on the CPU: x.cpu()");
}

}  // namespace

LoweredNode lower_body(const CapturedBody& body, hlo::Builder& builder, const NodeValues& values,
                       const LayoutPolicy& policy) {
  const Recording& recording = body.recording;
  const std::vector<Slot> slots = slots_of(recording);
  std::vector<Word> words(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    words[i] = {{}, slots[i], recording.words[i]};
    if (body.operands[i] >= 0) words[i].operand = values.words[static_cast<size_t>(body.operands[i])];
  }
  OutputMask wanted;
  for (uint32_t flat : body.results) {
    wanted.resize(std::max<size_t>(wanted.size(), flat / 64 + 1));
    wanted[flat / 64] |= uint64_t{1} << (flat % 64);
  }
  LoweredNodes lowered = lower_nodes(builder, recording, values.inputs, words, wanted, policy);
  LoweredNode result;
  for (uint32_t flat : body.results) result.outputs.push_back(lowered.values[flat]);
  for (auto& [n, check] : lowered.checks) {
    if (check.name.empty()) {
      check.name = recording.nodes[n].plan->name;
      check.location = recording.nodes[n].location;
    }
    result.checks.push_back(std::move(check));
  }
  return result;
}

ProgramText captured_program(const CapturedGraph& graph, const LayoutPolicy& policy, bool locations) {
  hlo::Builder builder;
  if (locations) builder.enable_locations();
  const Plan& plan = graph.plan;
  std::vector<Value> inputs;
  for (const TensorType& type : plan.inputs) inputs.push_back(builder.parameter(type));
  Recording alone;
  alone.nodes.push_back({&plan, {}, 0, 0, 0});
  const std::vector<Value> words = PackedWords(builder, alone).take(plan);
  LoweredNode lowered = lower_body(*plan.body, builder, {inputs, words}, policy);
  std::vector<Value> results = std::move(lowered.outputs);
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const auto& input = plan.outputs[i].takes_over;
    if (input && plan.inputs[*input] == results[i].type()) builder.set_aliased_output(*input, static_cast<int>(i));
  }
  ProgramText program;
  std::vector<Value> flags;
  for (LoweredNode::Check& check : lowered.checks) {
    program.checks.push_back({0, check.code, std::move(check.message), std::move(check.name), check.location});
    flags.push_back(hlo::reshape(check.bad, {1}));
  }
  if (!flags.empty()) results.push_back(flags.size() == 1 ? flags[0] : hlo::concatenate(flags, 0));
  program.text = builder.finish(results);
  return program;
}

std::shared_ptr<Program> build_program(const Recording& recording, const OutputMask& alive, const LayoutPolicy& policy,
                                       runtime::CompileCache& cache, std::string reason) {
  hlo::Builder builder;
  auto program = std::make_shared<Program>();
  program->label = label_of(recording);

  std::vector<Value> parameters;
  for (const auto& value : recording.parameters) parameters.push_back(builder.parameter(value->stored_type()));
  PackedWords packed(builder, recording);
  std::vector<Word> words;
  for (const NodeRecord& node : recording.nodes) {
    for (Value operand : packed.take(*node.plan)) words.push_back({operand, {}, 0});
  }
  LoweredNodes lowered = lower_nodes(builder, recording, parameters, words, alive, policy);
  const std::vector<Value>& values = lowered.values;
  std::vector<Value> flags;
  for (auto& [n, check] : lowered.checks) {
    program->checks.push_back({n, check.code, std::move(check.message), std::move(check.name), check.location});
    flags.push_back(hlo::reshape(check.bad, {1}));
  }

  std::vector<Value> results;
  std::set<uint32_t> aliased;
  for (uint32_t i = 0; i < values.size(); ++i) {
    if (!test(alive, i)) continue;
    const auto parameter = replaced_parameter(recording, i);
    if (parameter && values[i].type() == recording.parameters[*parameter]->stored_type() &&
        aliased.insert(*parameter).second) {
      builder.set_aliased_output(*parameter, static_cast<int>(results.size()));
      program->aliased_parameters.push_back(*parameter);
    }
    program->outputs.push_back(i);
    results.push_back(values[i]);
  }
  if (!flags.empty()) results.push_back(flags.size() == 1 ? flags[0] : hlo::concatenate(flags, 0));

  const Location& location = recording.nodes.back().location;
  std::string text = builder.finish(results);
  if (policy.neuron_limits) refuse_for_neuron(recording, program->label, text);
  program->memory = kMemoryOfAnyProgram + kMemoryPerByteOfText * text.size();
  std::string rows;
  append_rows(rows, recording);
  program->executable =
      cache.get({std::move(text), program->label, describe(location), std::move(reason), std::move(rows)});
  return program;
}

ProgramCache::Lookup ProgramCache::find(const Recording& recording, const OutputMask& alive) {
  Lookup result;
  auto [first, last] = index_.equal_range(table_hash(recording.hash));
  for (; first != last; ++first) {
    const Entries::iterator entry = first->second;
    if (entry->key != recording.key) continue;
    result.known_body = true;
    if (!includes(entry->alive, alive)) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    result.program = entry->program;
    return result;
  }
  return result;
}

std::vector<std::shared_ptr<Program>> ProgramCache::insert(const Recording& recording, OutputMask alive,
                                                           std::shared_ptr<Program> program) {
  bytes_ += program->memory;
  entries_.push_front({table_hash(recording.hash), recording.key, std::move(alive), std::move(program)});
  index_.emplace(entries_.front().hash, entries_.begin());
  std::vector<std::shared_ptr<Program>> removed;
  while (bytes_ > limit_bytes_ && entries_.size() > 1) removed.push_back(remove(draw_old()));
  return removed;
}

std::vector<std::shared_ptr<Program>> ProgramCache::clear() {
  std::vector<std::shared_ptr<Program>> removed;
  while (!entries_.empty()) removed.push_back(remove(entries_.begin()));
  return removed;
}

// Not the first, which is the newest, if there are two.
ProgramCache::Entries::iterator ProgramCache::draw_old() {
  const size_t half = std::max(entries_.size() / 2, size_t{1});
  return std::prev(entries_.end(), static_cast<std::ptrdiff_t>(1 + random_() % half));
}

std::shared_ptr<Program> ProgramCache::remove(Entries::iterator entry) {
  auto [first, last] = index_.equal_range(entry->hash);
  while (first != last && first->second != entry) ++first;
  index_.erase(first);
  std::shared_ptr<Program> program = std::move(entry->program);
  bytes_ -= program->memory;
  entries_.erase(entry);
  return program;
}

}  // namespace tpu::graph
