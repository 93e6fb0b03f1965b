#include "graph/slot_capture.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "graph/recorder.h"
#include "lowering/helpers.h"
#include "lowering/op_call.h"

namespace tpu::graph {

using runtime::StorageSlot;
using runtime::ValueRef;
using DeviceValue = runtime::Value;
using State = DeviceValue::State;
using SlotRef = runtime::Ref<StorageSlot>;

namespace {

// ---- the same bytes as another array -----------------------------------------------------------------

std::vector<lowering::Value> lower_same(const lowering::OpCall& call) {
  const lowering::Value value = call.tensor(0);
  const Dims& stored = call.result_type(0).dims;
  if (value.dims() == stored) return {value};
  Dims behind = stored;
  for (size_t i = 0; i < behind.size(); ++i) behind[i] -= value.dim(i);
  const Dims none(stored.size(), 0);
  return {stablehlo::pad(value, lowering::scalar(call.builder(), 0.0, value.dtype()), none, behind, none)};
}

// Writing may give a base other dims (graph/window.h). A graph is made for those that its tensors had, `stored` as they
// were.
const Plan& reinterpret_plan(const TensorType& from, const TensorType& to, const TensorType& stored) {
  static const lowering::Row row{.name = "reinterpret", .lower = lower_same};
  static auto* const plans = new std::map<std::string, std::unique_ptr<Plan>>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan = (*plans)[to_string(from) + to_string(to) + to_string(stored)];
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
  plan->results = {stored};
  plan->promoted = to.dtype;
  plan->bounded = !(to == stored);
  plan->outputs = {{stored, 0, iota(to.rank()), std::nullopt, {}, std::nullopt}};
  return *plan;
}

std::vector<uint64_t> at_the_beginning(const Plan& plan) { return std::vector<uint64_t>(plan.slots.size(), 0); }

// ---- graphs of the same nodes ------------------------------------------------------------------------

using OutputKey = std::pair<uint32_t, int32_t>;  // output of the recording, parameter whose memory it takes over

struct KnownGraph {
  std::vector<uint64_t> key;                    // plans, wires and lines
  std::optional<std::vector<uint64_t>> starts;  // constants of it; none: they are operands
  std::optional<std::vector<uint32_t>> equal;   // see `equal_words`; none: each word is an operand of its own
  std::vector<OutputKey> outputs;
  const CapturedGraph* graph = nullptr;
};

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

// For each word the first one that comes from the same argument of the same operator on the same line, and is the same
// number: the learning rate, for each of a hundred parameters.
std::vector<uint32_t> equal_words(const Recording& recording) {
  using Origin = std::tuple<const void*, int, const void*, uint32_t, Slot, uint64_t>;
  std::map<Origin, uint32_t> first;
  std::vector<uint32_t> equal;
  equal.reserve(recording.words.size());
  for (const NodeRecord& node : recording.nodes) {
    const void* const row = node.plan->row != nullptr ? static_cast<const void*>(node.plan->row) : node.plan;
    for (uint32_t i = 0; i < node.plan->slots.size(); ++i) {
      const uint32_t word = node.first_word + i;
      const Origin origin{
          node.location.code,   static_cast<int>(node.location.instruction), row, i, node.plan->slots[i],
          recording.words[word]};
      equal.push_back(first.emplace(origin, word).first->second);
    }
  }
  return equal;
}

bool are_equal(const std::vector<uint64_t>& words, const std::vector<uint32_t>& equal) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != words[equal[i]]) return false;
  }
  return true;
}

// `constants`: bit per word. `equal`: as `equal_words` gives it.
const CapturedGraph* make_graph(const Recording& recording, bool bounded, std::span<const uint32_t> random_words,
                                const std::vector<bool>& constants, std::span<const uint32_t> equal,
                                std::span<const OutputKey> outputs) {
  auto body = std::make_shared<CapturedBody>();
  auto* const graph = new CapturedGraph;
  Plan& plan = graph->plan;
  plan.id = next_plan_id();
  plan.name = "graph of " + std::to_string(recording.nodes.size()) + " operators";
  for (const ValueRef& parameter : recording.parameters) plan.inputs.push_back(parameter->stored_type());
  plan.bounded = bounded;
  body->draws = static_cast<uint32_t>(random_words.size() / 2);
  const std::vector<Slot> slots = slots_of(recording);
  body->operands.assign(slots.size(), -1);
  const auto open = [&](uint32_t word) {
    body->operands[word] = static_cast<int32_t>(plan.slots.size());
    plan.slots.push_back(slots[word]);
  };
  for (uint32_t word : random_words) open(word);
  for (uint32_t word = 0; word < slots.size(); ++word) {
    if (constants[word] || body->operands[word] >= 0) continue;
    const int32_t known = body->operands[equal[word]];
    const bool random = known >= 0 && static_cast<size_t>(known) < random_words.size();
    if (known >= 0 && !random) {
      body->operands[word] = known;
    } else {
      open(word);
    }
  }
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
const KnownGraph& shared_graph(const Recording& recording, bool bounded, std::span<const uint32_t> random_words,
                               std::vector<OutputKey> outputs) {
  static auto* const graphs = new std::unordered_multimap<uint64_t, std::unique_ptr<const KnownGraph>>;
  static std::mutex mutex;
  std::vector<uint64_t> key = sequence_key(recording);
  uint64_t hash = 0;
  for (uint64_t word : key) hash = mix(hash, word);
  std::vector<bool> constant = start_marks(recording);
  std::vector<uint64_t> starts;
  for (size_t i = 0; i < constant.size(); ++i) {
    if (constant[i]) starts.push_back(recording.words[i]);
  }
  std::vector<uint32_t> equal = equal_words(recording);
  std::lock_guard lock(mutex);
  bool starts_vary = bounded, numbers_vary = false;  // where windows start depends on sizes that change
  for (auto [first, last] = graphs->equal_range(hash); first != last; ++first) {
    const KnownGraph& known = *first->second;
    if (known.key != key) continue;
    const bool starts_fit = !known.starts || *known.starts == starts;
    const bool numbers_fit = !known.equal || are_equal(recording.words, *known.equal);
    if (starts_fit && numbers_fit && gives(known, outputs)) return known;
    starts_vary |= !starts_fit || !known.starts;
    numbers_vary |= !numbers_fit || !known.equal;
  }
  auto known = std::make_unique<KnownGraph>();
  if (starts_vary) constant.assign(constant.size(), false);
  if (numbers_vary) std::iota(equal.begin(), equal.end(), 0);
  known->graph = make_graph(recording, bounded, random_words, constant, equal, outputs);
  known->key = std::move(key);
  if (!starts_vary) known->starts = std::move(starts);
  if (!numbers_vary) known->equal = std::move(equal);
  known->outputs = std::move(outputs);
  return *graphs->emplace(hash, std::move(known))->second;
}

}  // namespace

// ---- the graph ---------------------------------------------------------------------------------------

ValueRef SlotGraph::value_of(const Source& source, const TensorType& stored, Location location) const {
  if (source.slot == nullptr) return source.constant;
  StorageSlot& slot = **source.slot;
  ValueRef value = slot.load();
  if (value->type() == source.type && value->stored_type() == stored) return value;
  if (value->type().bytes() != source.type.bytes()) {
    throw Error(Code::kInvalidArgument, "a tensor of " + to_string(source.type) +
                                            " that a captured graph reads was resized since, to " +
                                            to_string(value->type()));
  }
  const Plan& plan = reinterpret_plan(value->type(), source.type, stored);
  const OutputForm forms[] = {{source.type, source.changing}};
  StorageSlot* const targets[] = {&slot};
  const std::vector<uint64_t> words = at_the_beginning(plan);
  Recorder::of(device_).record(plan, {std::move(value)}, words, targets, location, forms);
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

void SlotGraph::adopt(const CapturedGraph& known, const std::vector<uint64_t>& words) {
  graph_ = &known;
  const std::vector<int32_t>& operands = known.plan.body->operands;
  words_.resize(known.plan.slots.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] >= 0) words_[static_cast<size_t>(operands[i])] = words[i];
  }
  for (const OutputTemplate& output : known.plan.outputs) forms_.push_back({output.base, 0});
}

void SlotGraph::launch(Location location) {
  std::vector<uint64_t> words = words_;
  if (Capture::current() == nullptr) draw(words);
  record(std::move(words), location);
}

void SlotGraph::launch_as_captured(Location location) { record(words_, location); }

void SlotGraph::record(std::vector<uint64_t> words, Location location) {
  if (const auto initial = std::move(initial_)) {
    // A program of its own, so that the graph's is the same in every launch.
    initial->record(initial->words_, location);
    Recorder::of(device_).flush("initial values");
  }
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
    const uint64_t changing = value->bounds() != nullptr ? value->bounds()->dims : 0;
    sources_.push_back({std::make_unique<OwnedSlot>(std::move(slot)), {}, value->type(), changing});
    return parameter(value);
  }
  if (value->state() == State::kUndefined) {  // allocated by the graph, and not written before it is read
    append(zeros_plan(value->stored_type()), {}, {}, location, {});
    const Wire wire{false, static_cast<uint32_t>(recording_.outputs.size() - 1)};
    know(value, wire);
    return wire;
  }
  if (value->state() == State::kPending) Recorder::of(device()).flush("captured");
  sources_.push_back({nullptr, value, {}, 0});
  return parameter(value);
}

void SlotCapture::before_write(std::span<StorageSlot* const> targets) {
  for (StorageSlot* target : targets) {
    if (target == nullptr) continue;
    const auto [known, first] = written_index_.emplace(target, written_.size());
    if (first) {
      written_.push_back({SlotRef(target), is_outside(*target) ? target->load() : ValueRef(), {}});
    } else if (Written& written = written_[known->second]; !written.before && !written.initial) {
      written.initial = target->load();
    }
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
    OutputForm form{value->type(), value->bounds() != nullptr ? value->bounds()->dims : 0};
    Result result{wire_of(*value)->index, -1, std::move(form), written.slot};
    if (written.before) {
      // So that the next replay finds what it reads in the form that it had.
      const TensorType& type = written.before->type();
      const bool exact = value->bounds() == nullptr && written.before->bounds() == nullptr;
      if (exact && !(value->type() == type)) {
        const Plan& plan = reinterpret_plan(value->type(), type, type);
        const Wire wires[] = {*wire_of(*value)};
        append(plan, wires, at_the_beginning(plan), {}, {});
        result.form.type = type;
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

namespace {

// A recording without some of its nodes, each of one output, which becomes a parameter instead. Parameters are numbered
// in the order in which nodes read them, as a capture does it.
class Replaced {
 public:
  /// `initial`: values of the outputs that become parameters, by output.
  Replaced(const Recording& whole, const std::unordered_map<uint32_t, ValueRef>& initial) : initial_(initial) {
    for (const NodeRecord& node : whole.nodes) {
      const size_t outputs = node.plan->outputs.size();
      const bool dropped = outputs == 1 && initial.count(node.first_output) != 0;
      first_words_.push_back(static_cast<uint32_t>(recording.words.size()));
      for (size_t k = 0; k < outputs; ++k) outputs_.push_back(static_cast<uint32_t>(recording.outputs.size() + k));
      if (dropped) continue;
      const auto first_wire = static_cast<uint32_t>(recording.wires.size());
      for (size_t i = 0; i < node.plan->inputs.size(); ++i) {
        recording.wires.push_back(moved(whole, whole.wires[node.first_wire + i]));
      }
      recording.nodes.push_back(
          {node.plan, node.location, first_wire, first_words_.back(), static_cast<uint32_t>(recording.outputs.size())});
      const auto words = whole.words.begin() + node.first_word;
      recording.words.insert(recording.words.end(), words, words + static_cast<ptrdiff_t>(node.plan->slots.size()));
      const auto values = whole.outputs.begin() + node.first_output;
      recording.outputs.insert(recording.outputs.end(), values, values + static_cast<ptrdiff_t>(outputs));
    }
  }
  uint32_t output(uint32_t of_whole) const { return outputs_[of_whole]; }
  uint32_t parameter(uint32_t of_whole) const { return parameters_.at(of_whole); }
  /// The parameter that an output became.
  std::optional<uint32_t> taken(uint32_t output) const {
    const auto found = taken_.find(output);
    return found == taken_.end() ? std::nullopt : std::optional(found->second);
  }
  /// First word of a node of the whole.
  uint32_t first_word(size_t node) const { return first_words_[node]; }

  Recording recording;

 private:
  Wire moved(const Recording& whole, const Wire& wire) {
    if (!wire.external && initial_.count(wire.index) == 0) return {false, outputs_[wire.index]};
    auto& known = wire.external ? parameters_ : taken_;
    const auto [place, first] = known.emplace(wire.index, static_cast<uint32_t>(recording.parameters.size()));
    if (first) recording.parameters.push_back(wire.external ? whole.parameters[wire.index] : initial_.at(wire.index));
    return {true, place->second};
  }

  const std::unordered_map<uint32_t, ValueRef>& initial_;
  std::vector<uint32_t> outputs_, first_words_;
  std::unordered_map<uint32_t, uint32_t> parameters_, taken_;
};

const NodeRecord& maker_of(const Recording& recording, uint32_t output) {
  return *std::find_if(recording.nodes.rbegin(), recording.nodes.rend(),
                       [&](const NodeRecord& node) { return node.first_output <= output; });
}

}  // namespace

std::unique_ptr<SlotGraph> SlotCapture::take_initial_values(std::span<StorageSlot* const> lasting,
                                                            std::vector<Result>& results) {
  auto taken = std::make_unique<SlotGraph>();
  taken->device_ = device();
  Recording makers;
  std::vector<OutputKey> outputs;
  std::unordered_map<uint32_t, ValueRef> values;
  std::unordered_map<uint32_t, SlotRef> slots;
  for (const Result& result : results) {
    if (std::find(lasting.begin(), lasting.end(), result.slot.get()) == lasting.end()) continue;
    const ValueRef& initial = written_[written_index_.at(result.slot.get())].initial;
    if (!initial || !made(*initial) || initial->bounds() != nullptr || !(initial->type() == result.form.type)) continue;
    const uint32_t output = wire_of(*initial)->index;
    const NodeRecord& node = maker_of(recording_, output);
    const Plan& plan = *node.plan;
    if (!plan.inputs.empty() || plan.outputs.size() != 1 || random_words(plan).second != 0) continue;
    // A node whose output is a result itself must stay.
    const auto gives_it = [output](const Result& other) { return other.output == output; };
    if (std::any_of(results.begin(), results.end(), gives_it) || !values.emplace(output, initial).second) continue;
    slots.emplace(output, result.slot);
    const auto number = static_cast<uint32_t>(makers.outputs.size());
    makers.nodes.push_back({&plan, node.location, 0, static_cast<uint32_t>(makers.words.size()), number});
    const auto words = recording_.words.begin() + node.first_word;
    makers.words.insert(makers.words.end(), words, words + static_cast<ptrdiff_t>(plan.slots.size()));
    makers.outputs.push_back(initial);
    outputs.emplace_back(number, -1);
    taken->targets_.push_back({result.slot, number});
  }
  if (makers.empty()) return nullptr;
  const KnownGraph& known = shared_graph(makers, false, {}, std::move(outputs));
  for (SlotGraph::Target& target : taken->targets_) {
    const auto place = std::find(known.outputs.begin(), known.outputs.end(), OutputKey(target.output, -1));
    target.output = static_cast<uint32_t>(place - known.outputs.begin());
  }
  taken->adopt(*known.graph, makers.words);

  Replaced replaced(recording_, values);
  std::vector<SlotGraph::Source> sources(replaced.recording.parameters.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    sources[replaced.parameter(static_cast<uint32_t>(i))] = std::move(sources_[i]);
  }
  for (const auto& [output, slot] : slots) {
    if (const auto parameter = replaced.taken(output)) {
      sources[*parameter] = {std::make_unique<OwnedSlot>(slot), {}, values.at(output)->type(), 0};
    }
  }
  sources_ = std::move(sources);
  for (uint32_t& word : random_words_) {
    const auto node = std::prev(std::find_if(recording_.nodes.begin(), recording_.nodes.end(),
                                             [&](const NodeRecord& other) { return other.first_word > word; }));
    word += replaced.first_word(static_cast<size_t>(node - recording_.nodes.begin())) - node->first_word;
  }
  for (Result& result : results) {
    const uint32_t output = result.output;
    result.output = replaced.output(output);
    if (result.takes_over >= 0) {
      result.takes_over = static_cast<int32_t>(replaced.parameter(static_cast<uint32_t>(result.takes_over)));
    }
    const Written& written = written_[written_index_.at(result.slot.get())];
    if (!written.initial || !made(*written.initial)) continue;
    if (const auto parameter = replaced.taken(wire_of(*written.initial)->index)) {
      result.takes_over = static_cast<int32_t>(*parameter);
    }
  }
  recording_ = std::move(replaced.recording);
  return taken;
}

std::unique_ptr<SlotGraph> SlotCapture::finish(std::span<StorageSlot* const> lasting) {
  std::vector<Result> results = this->results();
  std::unique_ptr<SlotGraph> initial = take_initial_values(lasting, results);
  finished_ = true;
  for (SlotGraph::Stream& stream : streams_) {
    const RandomDraw end = stream.stream->take(0);
    stream.blocks = end.seed == stream.begin.seed ? end.offset - stream.begin.offset : 0;
  }
  restore();
  if (results.empty()) return nullptr;
  std::vector<OutputKey> outputs;
  for (const Result& result : results) outputs.emplace_back(result.output, result.takes_over);
  const KnownGraph& known = shared_graph(recording_, bounded_, random_words_, std::move(outputs));

  auto graph = std::make_unique<SlotGraph>();
  graph->device_ = device();
  graph->sources_ = std::move(sources_);
  graph->initial_ = std::move(initial);
  graph->adopt(*known.graph, recording_.words);
  graph->streams_ = std::move(streams_);
  graph->draws_ = std::move(draws_);
  const auto unreplayed = std::make_shared<const Error>(
      Code::kInvalidArgument, "this tensor is made by a captured graph, and has no value before the graph is replayed");
  for (Result& result : results) {
    const OutputKey key{result.output, result.takes_over};
    const auto output = std::find(known.outputs.begin(), known.outputs.end(), key);
    const ValueRef value = result.slot->load();
    if (value && value->state() == State::kCaptured) value->fail(unreplayed);
    const auto number = static_cast<uint32_t>(output - known.outputs.begin());
    graph->forms_[number] = std::move(result.form);
    graph->targets_.push_back({std::move(result.slot), number});
  }
  return graph;
}

}  // namespace tpu::graph
