#include "graph/capture.h"

#include <algorithm>
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

Capture::Capture(int device) : device_(device), outer_(std::exchange(active, this)) {}

Capture::~Capture() {
  active = outer_;
  const auto error = never_computed();
  for (const ValueRef& value : keep_) {
    if (value->state() == State::kCaptured) value->fail(error);
  }
}

Capture* Capture::current() { return active; }

ValueRef Capture::argument(TensorType type, std::unique_ptr<const Bounds> bounds) {
  bounded_ |= bounds != nullptr;
  ValueRef value(new DeviceValue(std::move(type), device_, State::kCaptured, std::move(bounds)));
  wires_[value.get()] = {true, static_cast<uint32_t>(recording_.parameters.size())};
  recording_.parameters.push_back(value);
  sources_.push_back(arguments_++);
  keep_.push_back(value);
  return value;
}

// Words that are operands of the graph and no constants: what random nodes draw, and, so that graphs of other sizes
// have the same text, what depends on sizes. Where no size is involved that is at most a number that was made of one.
void Capture::open_words(const Plan& plan, uint32_t first) {
  const uint32_t drawn = plan.random_slot.value_or(0);
  const auto draws = static_cast<uint32_t>(plan.random_slot ? 1 : plan.body != nullptr ? plan.body->draws : 0);
  ensure(next_draws_.size() == draws, "a node was captured with other random operators than it has");
  for (DrawRandom& draw : std::exchange(next_draws_, {})) draws_.push_back(std::move(draw));
  for (uint32_t i = 0; i < plan.slots.size(); ++i) {
    const bool random = i >= drawn && i < drawn + 2 * draws;
    const bool by_size = plan.bounded || plan.body != nullptr || plan.slots[i] != Slot::kInt;
    if (random) {
      random_words_.push_back({first + i, plan.slots[i]});
    } else if (bounded_ && by_size) {
      size_words_.push_back({first + i, plan.slots[i]});
    }
  }
}

void Capture::append(const Plan& plan, std::span<const Wire> wires, std::span<const uint64_t> words, Location location,
                     std::span<const OutputForm> forms) {
  bounded_ |= plan.bounded;
  const auto first_word = static_cast<uint32_t>(recording_.words.size());
  recording_.nodes.push_back({&plan, location, static_cast<uint32_t>(recording_.wires.size()), first_word,
                              static_cast<uint32_t>(recording_.outputs.size())});
  recording_.wires.insert(recording_.wires.end(), wires.begin(), wires.end());
  recording_.words.insert(recording_.words.end(), words.begin(), words.end());
  open_words(plan, first_word);
  for (size_t k = 0; k < plan.outputs.size(); ++k) {
    ValueRef value = output_value(plan, k, forms, device_, State::kCaptured);
    wires_[value.get()] = {false, static_cast<uint32_t>(recording_.outputs.size())};
    recording_.outputs.push_back(value);
    keep_.push_back(std::move(value));
  }
}

Wire Capture::wire_of(const ValueRef& input, Location location) {
  if (const auto found = wires_.find(input.get()); found != wires_.end()) return found->second;
  Wire wire;
  if (input->state() == State::kUndefined) {
    // Memory that nothing has written yet. Whatever is written later is not what this graph reads.
    append(zeros_plan(input->stored_type()), {}, {}, location, {});
    wire = {false, static_cast<uint32_t>(recording_.outputs.size() - 1)};
  } else {
    if (input->state() == State::kPending) Recorder::of(device_).flush("captured");
    wire = {true, static_cast<uint32_t>(recording_.parameters.size())};
    recording_.parameters.push_back(input);
    sources_.push_back(-1);
    constants_.push_back(input);
  }
  wires_[input.get()] = wire;
  keep_.push_back(input);
  return wire;
}

void Capture::record(int device, const Plan& plan, std::span<const ValueRef> inputs, std::span<const uint64_t> words,
                     std::span<runtime::StorageSlot* const> targets, Location location,
                     std::span<const OutputForm> forms) {
  if (device != device_) block("an operator on another device was called");
  refuse_to_write(targets);
  // Memory that nothing has written becomes a node of its own first, which draws nothing.
  std::vector<DrawRandom> draws = std::exchange(next_draws_, {});
  std::vector<Wire> wires;
  for (const ValueRef& input : inputs) wires.push_back(wire_of(input, location));
  next_draws_ = std::move(draws);
  append(plan, wires, words, location, forms);
  const size_t first = recording_.outputs.size() - plan.outputs.size();
  for (size_t k = 0; k < plan.outputs.size(); ++k) {
    if (targets[k] == nullptr) continue;
    targets[k]->store(recording_.outputs[first + k]);
  }
}

void Capture::refuse_to_write(std::span<runtime::StorageSlot* const> targets) const {
  for (const runtime::StorageSlot* target : targets) {
    const ValueRef old = target == nullptr ? ValueRef() : target->load();
    // A tensor that was just allocated holds nothing, or an undefined value.
    if (!old || old->state() == State::kUndefined) continue;
    const auto found = wires_.find(old.get());
    if (found != wires_.end() && (!found->second.external || sources_[found->second.index] >= 0)) continue;
    block("it writes to a tensor that is neither an argument nor its own");
  }
}

void Capture::block(const char* reason) const {
  blocked_ = reason;
  const std::string where = describe(capture_location());
  throw Error(Code::kInvalidArgument, "this cannot be captured in a graph: " + std::string(reason) +
                                          (where.empty() ? "" : " (at " + where + ")"));
}

bool Capture::made(const DeviceValue& value) const {
  const auto found = wires_.find(&value);
  return found != wires_.end() && !found->second.external;
}

void Capture::refuse_to_read(const DeviceValue& value) const {
  const auto found = wires_.find(&value);
  if (found == wires_.end() || (found->second.external && sources_[found->second.index] < 0)) return;
  block("the value of a tensor is needed, which exists only when the graph runs");
}

const CapturedGraph& Capture::finish(std::span<const ValueRef> results, std::span<const int32_t> replaces) {
  auto body = std::make_shared<CapturedBody>();
  auto* const graph = new CapturedGraph;
  Plan& plan = graph->plan;
  plan.id = next_plan_id();
  plan.name = "graph of " + std::to_string(recording_.nodes.size()) + " operators";
  for (const ValueRef& parameter : recording_.parameters) plan.inputs.push_back(parameter->stored_type());
  for (const auto* words : {&random_words_, &size_words_}) {
    for (const OpenWord& open : *words) {
      plan.slots.push_back(open.slot);
      body->open_words.push_back(open.word);
    }
  }
  for (const OpenWord& open : size_words_) graph->words.push_back(recording_.words[open.word]);
  plan.bounded = bounded_;
  for (size_t k = 0; k < results.size(); ++k) {
    const Wire wire = wires_.at(results[k].get());
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
  graph->sources = sources_;
  graph->constants = constants_;
  graph->draws = draws_;
  body->draws = static_cast<uint32_t>(draws_.size());
  body->recording.nodes = recording_.nodes;
  body->recording.wires = recording_.wires;
  body->recording.words = recording_.words;
  plan.body = std::move(body);
  return *graph;
}

}  // namespace tpu::graph
