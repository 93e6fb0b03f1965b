#include "graph/capture.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "graph/recorder.h"

namespace tpu::graph {

using runtime::ValueRef;
using DeviceValue = runtime::Value;
using State = DeviceValue::State;

namespace {

thread_local Capture* active = nullptr;

std::shared_ptr<const Error> never_computed() {
  return std::make_shared<const Error>(
      Code::kInvalidArgument, "this tensor was made while a graph was captured, and is not one of the graph's results");
}

}  // namespace

std::pair<uint32_t, uint32_t> random_words(const Plan& plan) {
  if (plan.random_slot) return {*plan.random_slot, 1};
  return {0, plan.body != nullptr ? plan.body->draws : 0};
}

// ---- any capture -------------------------------------------------------------------------------------

Capture::Capture(int device) : device_(device), outer_(std::exchange(active, this)) {}

Capture::~Capture() {
  active = outer_;
  const auto error = never_computed();
  for (const ValueRef& value : keep_) {
    if (value->state() == State::kCaptured) value->fail(error);
  }
}

Capture* Capture::current() { return active; }

bool Capture::may_store(const runtime::StorageSlot& slot) const {
  const ValueRef old = slot.load();
  return !old || old->state() == State::kUndefined;
}

void Capture::changes_to(int64_t size, int64_t bound) {
  if (changing_bound(size) == 0) changing_sizes_.emplace_back(size, bound);
}

void Capture::set_sizes(std::span<const std::pair<int64_t, int64_t>> sizes_and_bounds) {
  changing_sizes_.assign(sizes_and_bounds.begin(), sizes_and_bounds.end());
  knows_sizes_ = true;
}

int64_t Capture::changing_bound(int64_t size) const {
  for (const auto& [known, bound] : changing_sizes_) {
    if (known == size) return bound;
  }
  return 0;
}

void Capture::know(const ValueRef& value, Wire wire) {
  wires_[value.get()] = wire;
  keep_.push_back(value);
}

const Wire* Capture::wire_of(const DeviceValue& value) const {
  const auto found = wires_.find(&value);
  return found == wires_.end() ? nullptr : &found->second;
}

bool Capture::made(const DeviceValue& value) const {
  const Wire* const wire = wire_of(value);
  return wire != nullptr && !wire->external;
}

void Capture::lies_in(const ValueRef& value, runtime::StorageSlot& slot) {
  if (wire_of(*value) == nullptr) next_places_.emplace_back(value, runtime::Ref<runtime::StorageSlot>(&slot));
}

runtime::Ref<runtime::StorageSlot> Capture::place_of(const DeviceValue& value) const {
  for (const auto& [held, slot] : next_places_) {
    if (held.get() == &value) return slot;
  }
  return runtime::StorageSlot::holding(value);
}

Wire Capture::parameter(const ValueRef& value) {
  const Wire wire{true, static_cast<uint32_t>(recording_.parameters.size())};
  recording_.parameters.push_back(value);
  know(value, wire);
  return wire;
}

void Capture::append(const Plan& plan, std::span<const Wire> wires, std::span<const uint64_t> words, Location location,
                     std::span<const OutputForm> forms) {
  bounded_ |= plan.bounded;
  ensure(next_draws_.size() == random_words(plan).second,
         "a node was captured with other random operators than it has");
  recording_.nodes.push_back({&plan, location, static_cast<uint32_t>(recording_.wires.size()),
                              static_cast<uint32_t>(recording_.words.size()),
                              static_cast<uint32_t>(recording_.outputs.size())});
  recording_.wires.insert(recording_.wires.end(), wires.begin(), wires.end());
  recording_.words.insert(recording_.words.end(), words.begin(), words.end());
  appended(recording_.nodes.back(), std::exchange(next_draws_, {}));
  for (size_t k = 0; k < plan.outputs.size(); ++k) {
    ValueRef value = output_value(plan, k, forms, device_, State::kCaptured);
    know(value, {false, static_cast<uint32_t>(recording_.outputs.size())});
    recording_.outputs.push_back(std::move(value));
  }
}

void Capture::record(int device, const Plan& plan, std::span<const ValueRef> inputs, std::span<const uint64_t> words,
                     std::span<runtime::StorageSlot* const> targets, Location location,
                     std::span<const OutputForm> forms) {
  // Of a node that draws. Others may come in between, which make values that it needs.
  std::vector<DrawRandom> draws = std::exchange(next_draws_, {});
  if (device != device_) block("an operator on another device was called");
  before_write(targets);
  std::vector<Wire> wires;
  for (const ValueRef& input : inputs) {
    const Wire* const known = wire_of(*input);
    wires.push_back(known != nullptr ? *known : from_outside(input, location));
  }
  next_places_.clear();
  if (random_words(plan).second > 0) next_draws_ = std::exchange(draws, {});
  append(plan, wires, words, location, forms);
  next_draws_ = std::move(draws);
  const size_t first = recording_.outputs.size() - plan.outputs.size();
  for (size_t k = 0; k < plan.outputs.size(); ++k) {
    if (targets[k] != nullptr) targets[k]->store(recording_.outputs[first + k]);
  }
}

void Capture::block(const char* reason) const {
  const std::string where = describe(capture_location());
  blocked_ = reason;
  throw Error(Code::kInvalidArgument, "this cannot be captured in a graph: " + std::string(reason) +
                                          (where.empty() ? "" : " (at " + where + ")"));
}

// ---- a function of arguments -------------------------------------------------------------------------

ValueRef CallCapture::argument(TensorType type, std::unique_ptr<const Bounds> bounds) {
  bounded_ |= bounds != nullptr;
  ValueRef value(new DeviceValue(std::move(type), device(), State::kCaptured, std::move(bounds)));
  parameter(value);
  sources_.push_back(arguments_++);
  return value;
}

// Words that are operands of the graph and no constants: what random nodes draw and, so that graphs of other sizes
// have the same text, all numbers where sizes change: any may have been made of one.
void CallCapture::appended(const NodeRecord& node, std::vector<DrawRandom> draws) {
  const Plan& plan = *node.plan;
  const auto [drawn, count] = random_words(plan);
  for (DrawRandom& draw : draws) draws_.push_back(std::move(draw));
  for (uint32_t i = 0; i < plan.slots.size(); ++i) {
    const bool random = i >= drawn && i < drawn + 2 * count;
    if (random) {
      random_words_.push_back({node.first_word + i, plan.slots[i]});
    } else if (bounded_) {
      size_words_.push_back({node.first_word + i, plan.slots[i]});
    }
  }
}

Wire CallCapture::from_outside(const ValueRef& value, Location location) {
  if (value->state() == State::kUndefined) {
    // Memory that nothing has written yet. Whatever is written later is not what this graph reads.
    append(zeros_plan(value->stored_type()), {}, {}, location, {});
    const Wire wire{false, static_cast<uint32_t>(recording_.outputs.size() - 1)};
    know(value, wire);
    return wire;
  }
  if (value->state() == State::kPending) Recorder::of(device()).flush("captured");
  sources_.push_back(-1);
  constants_.push_back(value);
  return parameter(value);
}

void CallCapture::before_write(std::span<runtime::StorageSlot* const> targets) {
  for (const runtime::StorageSlot* target : targets) {
    const ValueRef old = target == nullptr ? ValueRef() : target->load();
    // A tensor that was just allocated holds nothing, or an undefined value.
    if (!old || old->state() == State::kUndefined) continue;
    const Wire* const wire = wire_of(*old);
    if (wire != nullptr && (!wire->external || sources_[wire->index] >= 0)) continue;
    block("it writes to a tensor that is neither an argument nor its own");
  }
}

void CallCapture::refuse_to_read(const DeviceValue& value) const {
  const Wire* const wire = wire_of(value);
  if (wire == nullptr || (wire->external && sources_[wire->index] < 0)) return;
  block("the value of a tensor is needed, which exists only when the graph runs");
}

CapturedGraph CallCapture::make_graph(std::span<const ValueRef> results, std::span<const int32_t> replaces) const {
  auto body = std::make_shared<CapturedBody>();
  CapturedGraph graph;
  Plan& plan = graph.plan;
  plan.id = next_plan_id();
  plan.name = "graph of " + std::to_string(recording_.nodes.size()) + " operators";
  for (const ValueRef& parameter : recording_.parameters) plan.inputs.push_back(parameter->stored_type());
  body->operands.assign(recording_.words.size(), -1);
  for (const auto* words : {&random_words_, &size_words_}) {
    for (const OpenWord& open : *words) {
      body->operands[open.word] = static_cast<int32_t>(plan.slots.size());
      plan.slots.push_back(open.slot);
    }
  }
  plan.bounded = bounded_;
  for (size_t k = 0; k < results.size(); ++k) {
    const Wire wire = *wire_of(*results[k]);
    ensure(!wire.external, "a result of a captured graph that no node made");
    body->results.push_back(wire.index);
    OutputTemplate output{
        results[k]->stored_type(), static_cast<uint32_t>(k), iota(results[k]->type().rank()), {}, {}, {}};
    if (replaces[k] >= 0) {
      const auto source = std::find(sources_.begin(), sources_.end(), replaces[k]);
      output.takes_over = static_cast<uint32_t>(source - sources_.begin());
    }
    plan.outputs.push_back(std::move(output));
  }
  graph.sources = sources_;
  for (const DrawRandom& draw : draws_) graph.blocks.push_back(draw.blocks);
  body->draws = static_cast<uint32_t>(draws_.size());
  body->recording.nodes = recording_.nodes;
  body->recording.wires = recording_.wires;
  body->recording.words = recording_.words;
  plan.body = std::move(body);
  return graph;
}

namespace {

// All that a graph is but its plan's number.
std::vector<uint64_t> content_of(const CapturedGraph& graph) {
  const CapturedBody& body = *graph.plan.body;
  std::vector<uint64_t> key = sequence_key(body.recording);
  const auto add = [&](const auto& list) {
    key.push_back(list.size());
    for (const auto& word : list) key.push_back(static_cast<uint64_t>(word));
  };
  for (const TensorType& input : graph.plan.inputs) {
    key.push_back(static_cast<uint64_t>(input.dtype));
    add(input.dims);
  }
  add(graph.sources);
  add(graph.blocks);
  add(body.operands);
  add(body.results);
  for (size_t i = 0; i < body.operands.size(); ++i) {
    if (body.operands[i] < 0) key.push_back(body.recording.words[i]);
  }
  for (const OutputTemplate& output : graph.plan.outputs) key.push_back(output.takes_over ? 1 + *output.takes_over : 0);
  return key;
}

const CapturedGraph* shared(CapturedGraph graph) {
  static auto* const graphs = new std::map<std::vector<uint64_t>, std::unique_ptr<const CapturedGraph>>;
  static std::mutex mutex;
  std::vector<uint64_t> key = content_of(graph);
  std::lock_guard lock(mutex);
  std::unique_ptr<const CapturedGraph>& known = (*graphs)[std::move(key)];
  if (known == nullptr) known = std::make_unique<const CapturedGraph>(std::move(graph));
  return known.get();
}

}  // namespace

CapturedFunction CallCapture::finish(std::span<const ValueRef> results, std::span<const int32_t> replaces, bool again) {
  CapturedGraph graph = make_graph(results, replaces);
  CapturedFunction function{nullptr, constants_, draws_, {}};
  for (const OpenWord& open : size_words_) function.words.push_back(recording_.words[open.word]);
  function.graph = again ? shared(std::move(graph)) : new CapturedGraph(std::move(graph));
  return function;
}

std::vector<uint64_t> sequence_key(const Recording& recording) {
  std::vector<uint64_t> key;
  key.reserve(recording.nodes.size() * 3 + recording.wires.size());
  for (const NodeRecord& node : recording.nodes) {
    key.push_back(node.plan->id);
    key.push_back(reinterpret_cast<uintptr_t>(node.location.code));
    key.push_back(static_cast<uint64_t>(node.location.instruction));
  }
  for (const Wire& wire : recording.wires) key.push_back(uint64_t{wire.external} << 32 | wire.index);
  return key;
}

}  // namespace tpu::graph
