#include "graph/slot_capture.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/hash.h"
#include "graph/recorder.h"
#include "lowering/op_call.h"

namespace tpu::graph {

using runtime::StorageSlot;
using runtime::ValueRef;
using DeviceValue = runtime::Value;
using State = DeviceValue::State;
using SlotRef = runtime::Ref<StorageSlot>;

namespace {

// ---- the same bytes as another array -----------------------------------------------------------------

std::vector<lowering::Value> lower_same(const lowering::OpCall& call) { return {call.tensor(0)}; }

// Writing may give a base other dims (graph/window.h). A graph is made for those that its tensors had.
const Plan& reinterpret_plan(const TensorType& from, const TensorType& to) {
  static const lowering::Row row{.name = "reinterpret", .lower = lower_same};
  static auto* const plans = new std::map<std::pair<std::string, std::string>, std::unique_ptr<Plan>>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan = (*plans)[{to_string(from), to_string(to)}];
  if (plan != nullptr) return *plan;
  plan = std::make_unique<Plan>();
  plan->id = next_plan_id();
  plan->row = &row;
  plan->name = row.name;
  plan->inputs = {from};
  const Window whole{to.dtype, to.dims, contiguous_strides(to.dims)};
  const TensorRef ref{0, Layout::make(from, whole, 0, false), 0, {}, 0, {}, 0};
  plan->slots.assign(ref.layout.start_count(), Slot::kInt);
  plan->args = {ref};
  plan->results = {to};
  plan->promoted = to.dtype;
  plan->outputs = {{to, 0, iota(to.rank()), std::nullopt, {}, std::nullopt}};
  return *plan;
}

std::vector<uint64_t> at_the_beginning(const Plan& plan) { return std::vector<uint64_t>(plan.slots.size(), 0); }

// ---- graphs of the same nodes ------------------------------------------------------------------------

using OutputKey = std::pair<uint32_t, int32_t>;  // output of the recording, parameter whose memory it takes over

struct KnownGraph {
  std::vector<uint64_t> key;                    // plans, wires and lines
  std::optional<std::vector<uint64_t>> starts;  // constants of it; none: they are operands
  std::vector<OutputKey> outputs;
  const CapturedGraph* graph = nullptr;
};

std::vector<uint64_t> key_of(const Recording& recording) {
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

void mark_starts(const TensorRef& ref, uint32_t first_word, std::vector<bool>& marks) {
  for (size_t i = 0; i < ref.layout.start_count(); ++i) marks[first_word + ref.first_slot + i] = true;
}

// Where windows start, which seldom changes and is better known to the compiler. Bit per word of the recording.
std::vector<bool> start_marks(const Recording& recording) {
  std::vector<bool> marks(recording.words.size(), false);
  for (const NodeRecord& node : recording.nodes) {
    for (const ArgTemplate& arg : node.plan->args) {
      if (const auto* one = std::get_if<TensorRef>(&arg)) mark_starts(*one, node.first_word, marks);
      if (const auto* many = std::get_if<std::vector<std::optional<TensorRef>>>(&arg)) {
        for (const auto& each : *many) {
          if (each) mark_starts(*each, node.first_word, marks);
        }
      }
    }
    for (const OutputTemplate& output : node.plan->outputs) {
      if (!output.replace) continue;
      for (size_t i = 0; i < output.replace->layout.start_count(); ++i) {
        marks[node.first_word + output.replace->first_slot + i] = true;
      }
    }
  }
  return marks;
}

std::vector<Slot> slots_of(const Recording& recording) {
  std::vector<Slot> slots;
  for (const NodeRecord& node : recording.nodes) {
    slots.insert(slots.end(), node.plan->slots.begin(), node.plan->slots.end());
  }
  return slots;
}

const CapturedGraph* make_graph(const Recording& recording, std::span<const uint32_t> random_words,
                                const std::vector<bool>& constants, std::span<const OutputKey> outputs) {
  auto body = std::make_shared<CapturedBody>();
  auto* const graph = new CapturedGraph;
  Plan& plan = graph->plan;
  plan.id = next_plan_id();
  plan.name = "graph of " + std::to_string(recording.nodes.size()) + " operators";
  for (const ValueRef& parameter : recording.parameters) plan.inputs.push_back(parameter->stored_type());
  body->open_words.assign(random_words.begin(), random_words.end());
  body->random_words = static_cast<uint32_t>(random_words.size());
  std::vector<bool> open = constants;
  for (uint32_t word : random_words) open[word] = true;
  for (uint32_t word = 0; word < open.size(); ++word) {
    if (!open[word]) body->open_words.push_back(word);
  }
  const std::vector<Slot> slots = slots_of(recording);
  for (uint32_t word : body->open_words) plan.slots.push_back(slots[word]);
  for (const auto& [output, takes_over] : outputs) {
    const TensorType type = recording.outputs[output]->stored_type();
    OutputTemplate made{type, static_cast<uint32_t>(body->results.size()), iota(type.rank()), {}, {}, {}};
    if (takes_over >= 0) made.takes_over = static_cast<uint32_t>(takes_over);
    plan.outputs.push_back(std::move(made));
    body->results.push_back(output);
  }
  body->recording.nodes = recording.nodes;
  body->recording.wires = recording.wires;
  body->recording.words = recording.words;
  plan.body = std::move(body);
  return graph;
}

bool gives(const KnownGraph& known, std::span<const OutputKey> outputs) {
  return std::all_of(outputs.begin(), outputs.end(), [&](const OutputKey& output) {
    return std::find(known.outputs.begin(), known.outputs.end(), output) != known.outputs.end();
  });
}

// A graph of these nodes that gives at least these outputs.
const KnownGraph& shared_graph(const Recording& recording, std::span<const uint32_t> random_words,
                               std::vector<OutputKey> outputs) {
  static auto* const graphs = new std::unordered_multimap<uint64_t, std::unique_ptr<const KnownGraph>>;
  static std::mutex mutex;
  std::vector<uint64_t> key = key_of(recording);
  uint64_t hash = 0;
  for (uint64_t word : key) hash = mix(hash, word);
  std::vector<bool> constant = start_marks(recording);
  std::vector<uint64_t> starts;
  for (size_t i = 0; i < constant.size(); ++i) {
    if (constant[i]) starts.push_back(recording.words[i]);
  }
  std::lock_guard lock(mutex);
  bool starts_vary = false;
  for (auto [first, last] = graphs->equal_range(hash); first != last; ++first) {
    const KnownGraph& known = *first->second;
    if (known.key != key) continue;
    const bool fits = !known.starts || *known.starts == starts;
    if (fits && gives(known, outputs)) return known;
    starts_vary |= !fits || !known.starts;
  }
  auto known = std::make_unique<KnownGraph>();
  if (starts_vary) constant.assign(constant.size(), false);
  known->graph = make_graph(recording, random_words, constant, outputs);
  known->key = std::move(key);
  if (!starts_vary) known->starts = std::move(starts);
  known->outputs = std::move(outputs);
  return *graphs->emplace(hash, std::move(known))->second;
}

}  // namespace

// ---- the graph ---------------------------------------------------------------------------------------

ValueRef SlotGraph::value_of(const Source& source, const TensorType& type, Location location) const {
  if (source.slot == nullptr) return source.constant;
  StorageSlot& slot = **source.slot;
  ValueRef value = slot.load();
  if (value->type() == type || value->stored_type() == type) return value;
  if (value->type().bytes() != type.bytes()) {
    throw Error(Code::kInvalidArgument, "a tensor of " + to_string(type) +
                                            " that a captured graph reads was resized since, to " +
                                            to_string(value->type()));
  }
  const Plan& plan = reinterpret_plan(value->type(), type);
  StorageSlot* const targets[] = {&slot};
  const std::vector<uint64_t> words = at_the_beginning(plan);
  Recorder::of(device_).record(plan, {std::move(value)}, words, targets, location);
  return slot.load();
}

void SlotGraph::draw(std::vector<uint64_t>& words) const {
  std::vector<RandomDraw> now;
  for (const Stream& stream : streams_) now.push_back(stream.stream->take(stream.blocks));
  for (size_t i = 0; i < draws_.size(); ++i) {
    const size_t number = draws_[i].stream;
    const RandomDraw& begin = streams_[number].begin;
    if (words[2 * i] != begin.seed) continue;  // seeded within the graph
    words[2 * i] = now[number].seed;
    words[2 * i + 1] += now[number].offset - begin.offset;
  }
}

void SlotGraph::launch(Location location) {
  std::vector<uint64_t> words = words_;
  if (Capture::current() == nullptr) draw(words);
  record(std::move(words), location);
}

void SlotGraph::launch_as_captured(Location location) { record(words_, location); }

void SlotGraph::record(std::vector<uint64_t> words, Location location) {
  const Plan& plan = graph_->plan;
  std::vector<ValueRef> inputs;
  for (size_t i = 0; i < sources_.size(); ++i) inputs.push_back(value_of(sources_[i], plan.inputs[i], location));
  std::vector<StorageSlot*> targets(plan.outputs.size(), nullptr);
  for (const Target& target : targets_) {
    if (target.slot->owned()) targets[target.output] = target.slot.get();
  }
  if (Capture* const outer = Capture::current()) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].slot != nullptr) outer->lies_in(inputs[i], **sources_[i].slot);
    }
    std::vector<DrawRandom> draws;
    for (const Draw& draw : draws_) draws.push_back({streams_[draw.stream].stream, draw.blocks});
    outer->next_random(std::move(draws));
  }
  Recorder::of(device_).record(plan, std::move(inputs), words, targets, location, forms_);
}

std::string SlotGraph::text(const LayoutPolicy& policy, bool locations) const {
  return captured_program(*graph_, policy, locations).text;
}

// ---- capturing ---------------------------------------------------------------------------------------

namespace {

uint64_t next_capture() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

SlotCapture::SlotCapture(int device, Use use, uint64_t origin, RandomStream stream)
    : Capture(device), use_(use), origin_(origin), number_(next_capture()), slots_before_(StorageSlot::count()) {
  stream_of(std::make_shared<const RandomStream>(std::move(stream)));
}

SlotCapture::~SlotCapture() {
  if (!finished_) restore();
}

SlotCapture* SlotCapture::current() { return dynamic_cast<SlotCapture*>(Capture::current()); }

size_t SlotCapture::stream_of(const std::shared_ptr<const RandomStream>& stream) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].stream->generator == stream->generator) return i;
  }
  streams_.push_back({stream, stream->take(0), 0});
  return streams_.size() - 1;
}

// Numbers are drawn during the capture, so that code which saves and restores a generator's state works as ever.
void SlotCapture::appended(const NodeRecord& node, std::vector<DrawRandom> draws) {
  const uint32_t first = node.first_word + random_words(*node.plan).first;
  for (uint32_t i = 0; i < draws.size(); ++i) {
    draws_.push_back({stream_of(draws[i].stream), draws[i].blocks});
    const RandomDraw drawn = draws[i]();
    for (const auto& [word, value] : {std::pair{first + 2 * i, drawn.seed}, {first + 2 * i + 1, drawn.offset}}) {
      recording_.words[word] = value;
      random_words_.push_back(word);
    }
  }
}

Wire SlotCapture::from_outside(const ValueRef& value, Location location) {
  SlotRef slot = place_of(*value);
  if (slot && is_outside(*slot)) {
    sources_.push_back({std::make_unique<OwnedSlot>(std::move(slot)), {}});
    return parameter(value);
  }
  if (value->state() == State::kUndefined) {  // allocated by the graph, and not written before it is read
    append(zeros_plan(value->stored_type()), {}, {}, location, {});
    const Wire wire{false, static_cast<uint32_t>(recording_.outputs.size() - 1)};
    know(value, wire);
    return wire;
  }
  if (value->state() == State::kPending) Recorder::of(device()).flush("captured");
  sources_.push_back({nullptr, value});
  return parameter(value);
}

void SlotCapture::before_write(std::span<StorageSlot* const> targets) {
  for (StorageSlot* target : targets) {
    if (target == nullptr || !written_index_.emplace(target, written_.size()).second) continue;
    written_.push_back({SlotRef(target), is_outside(*target) ? target->load() : ValueRef()});
  }
}

void SlotCapture::refuse_to_read(const DeviceValue& value) const {
  if (use_ == Use::kOnce && !made(value)) return;
  block("the value of a tensor is needed, which exists only when the graph runs");
}

void SlotCapture::refuse_host_data() const {
  if (use_ == Use::kOnce) return;
  block(
      "data is copied from the host, which every replay would repeat; copy it before the capture, to a tensor that "
      "the graph reads");
}

void SlotCapture::refuse_to_resize(const StorageSlot& slot) const {
  if (is_outside(slot)) block("a tensor from outside is resized");
}

bool SlotCapture::may_store(const StorageSlot& slot) const { return !is_outside(slot) && Capture::may_store(slot); }

std::vector<SlotCapture::Result> SlotCapture::results() {
  std::vector<Result> results;
  for (const Written& written : written_) {
    const ValueRef value = written.slot->load();
    if (!value || !made(*value) || !written.slot->owned()) continue;
    Result result{wire_of(*value)->index, -1, written.slot};
    if (written.before) {
      const TensorType& type = written.before->type();
      if (!(value->type() == type)) {
        const Plan& plan = reinterpret_plan(value->type(), type);
        const Wire wires[] = {*wire_of(*value)};
        append(plan, wires, at_the_beginning(plan), {}, {});
        result.output = static_cast<uint32_t>(recording_.outputs.size() - 1);
      }
      const Wire* const old = wire_of(*written.before);
      if (old != nullptr && old->external) result.takes_over = static_cast<int32_t>(old->index);
    }
    results.push_back(std::move(result));
  }
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.output < b.output; });
  return results;
}

void SlotCapture::restore() {
  for (const Written& written : written_) {
    if (!written.before) continue;
    const ValueRef now = written.slot->load();
    if (now && made(*now)) written.slot->store(written.before);
  }
  if (use_ == Use::kOnce) return;
  for (const SlotGraph::Stream& stream : streams_) stream.stream->set(stream.begin);
}

std::unique_ptr<SlotGraph> SlotCapture::finish() {
  std::vector<Result> results = this->results();
  finished_ = true;
  for (SlotGraph::Stream& stream : streams_) {
    const RandomDraw end = stream.stream->take(0);
    stream.blocks = end.seed == stream.begin.seed ? end.offset - stream.begin.offset : 0;
  }
  restore();
  if (results.empty()) return nullptr;
  std::vector<OutputKey> outputs;
  for (const Result& result : results) outputs.emplace_back(result.output, result.takes_over);
  const KnownGraph& known = shared_graph(recording_, random_words_, std::move(outputs));

  auto graph = std::make_unique<SlotGraph>();
  graph->device_ = device();
  graph->graph_ = known.graph;
  graph->sources_ = std::move(sources_);
  for (uint32_t word : known.graph->plan.body->open_words) graph->words_.push_back(recording_.words[word]);
  for (const OutputKey& output : known.outputs) {
    const DeviceValue& value = *recording_.outputs[output.first];
    graph->forms_.push_back({value.type(), value.bounds() ? value.bounds()->dims : 0});
  }
  graph->streams_ = std::move(streams_);
  graph->draws_ = std::move(draws_);
  const auto unreplayed = std::make_shared<const Error>(
      Code::kInvalidArgument, "this tensor is made by a captured graph, and has no value before the graph is replayed");
  for (Result& result : results) {
    const OutputKey key{result.output, result.takes_over};
    const auto output = std::find(known.outputs.begin(), known.outputs.end(), key);
    const ValueRef value = result.slot->load();
    if (value && value->state() == State::kCaptured) value->fail(unreplayed);
    graph->targets_.push_back({std::move(result.slot), static_cast<uint32_t>(output - known.outputs.begin())});
  }
  return graph;
}

}  // namespace tpu::graph
