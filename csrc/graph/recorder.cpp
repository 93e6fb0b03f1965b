#include "graph/recorder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "base/waiting.h"
#include "graph/capture.h"
#include "lowering/helpers.h"
#include "runtime/memory_stats.h"

namespace tpu::graph {
using runtime::ValueRef;
using DeviceValue = runtime::Value;
using State = DeviceValue::State;

namespace {

constexpr int64_t kProgramMemoryMb = 1024;  // thousands of small programs; also bounds their memory mappings
constexpr size_t kMaxInFlight = 32;         // launches not finished on the device; bounds run-ahead memory

std::vector<lowering::Value> lower_zeros(const lowering::OpCall& call) {
  return {call.builder().constant(0.0, call.result_type(0))};
}

std::vector<lowering::Value> lower_cut(const lowering::OpCall& call) {
  const lowering::Value stored = call.tensor(0);
  const Dims none(stored.rank(), 0), ones(stored.rank(), 1);
  return {stablehlo::slice(stored, none, call.result_type(0).dims, ones)};
}

// Plans of the engine's own, by the types that they depend on.
class OwnPlans {
 public:
  template <typename Make>
  const Plan& get(const TensorType& from, const TensorType& to, const Make& make) {
    uint64_t hash = mix(static_cast<uint64_t>(to.dtype), to.rank());
    for (const TensorType* type : {&from, &to}) {
      for (int64_t d : type->dims) hash = mix(hash, static_cast<uint64_t>(d));
    }
    std::lock_guard lock(mutex_);
    auto [first, last] = plans_.equal_range(hash);
    for (; first != last; ++first) {
      const Entry& entry = first->second;
      if (entry.from == from && entry.to == to) return *entry.plan;
    }
    auto plan = std::make_unique<Plan>();
    plan->id = next_plan_id();
    plan->results = {to};
    plan->promoted = to.dtype;
    plan->outputs.push_back({to, 0, iota(to.rank()), std::nullopt, {}, std::nullopt});
    make(*plan);
    return *plans_.emplace(hash, Entry{from, to, std::move(plan)})->second.plan;
  }

 private:
  struct Entry {
    TensorType from, to;
    std::unique_ptr<Plan> plan;
  };
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, Entry> plans_;
};

// Takes what is there out of a larger array, for a plan that knows no bounds.
const Plan& cut_plan(const TensorType& stored, const TensorType& type) {
  static const lowering::Row row{.name = "cut", .lower = lower_cut};
  static auto* const plans = new OwnPlans;
  return plans->get(stored, type, [&](Plan& plan) {
    plan.row = &row;
    plan.name = "cut to " + to_string(type);
    plan.inputs = {stored};
    const Window whole{stored.dtype, stored.dims, contiguous_strides(stored.dims)};
    plan.args = {TensorRef{0, Layout::make(stored, whole, 0, false), 0, {}, 0, {}, 0}};
  });
}

size_t program_memory() {
  const int64_t megabytes = env::integer(env::kProgramMemoryMb, kProgramMemoryMb);
  if (megabytes < 0) throw Error(Code::kValue, std::string(env::kProgramMemoryMb) + " must not be negative");
  return static_cast<size_t>(megabytes) << 20;
}

std::string place_of(const std::string& name, const Location& location) {
  const std::string where = describe(location);
  return where.empty() ? name : name + " at " + where;
}

// " on float64[3, 5], int64[3]", or nothing: a compiler that refuses a program mostly does so for a dtype.
std::string inputs_of(const Plan& plan) {
  constexpr size_t kShown = 4;
  std::vector<std::string> types;
  for (const TensorType& type : plan.inputs) {
    std::string text = to_string(type);
    if (std::find(types.begin(), types.end(), text) == types.end()) types.push_back(std::move(text));
  }
  std::string all;
  for (size_t i = 0; i < types.size() && i < kShown; ++i) all += (i == 0 ? " on " : ", ") + types[i];
  return types.size() > kShown ? all + " and others" : all;
}

bool has_graphs(const Recording& recording) {
  return std::any_of(recording.nodes.begin(), recording.nodes.end(),
                     [](const NodeRecord& node) { return node.plan->body != nullptr; });
}

// One operator: what is at fault when it fails is known.
bool is_single(const Recording& recording) { return recording.nodes.size() == 1 && !has_graphs(recording); }

// The same with the nodes of captured graphs in the place of each.
Recording without_graphs(const Recording& whole) {
  Recording parts;
  parts.parameters = whole.parameters;
  std::vector<uint32_t> places;  // of outputs of `whole` among those of `parts`
  const auto moved = [&](const Wire& wire) { return wire.external ? wire : Wire{false, places[wire.index]}; };
  const auto add = [&](const NodeRecord& node, const std::vector<Wire>& wires, std::span<const uint64_t> words) {
    const auto size = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
    parts.nodes.push_back({node.plan, node.location, size(parts.wires), size(parts.words), size(parts.outputs)});
    parts.wires.insert(parts.wires.end(), wires.begin(), wires.end());
    parts.words.insert(parts.words.end(), words.begin(), words.end());
    parts.outputs.resize(parts.outputs.size() + node.plan->outputs.size());
  };
  for (const NodeRecord& node : whole.nodes) {
    std::vector<Wire> inputs;
    for (size_t i = 0; i < node.plan->inputs.size(); ++i) inputs.push_back(moved(whole.wires[node.first_wire + i]));
    const std::span words = std::span(whole.words).subspan(node.first_word, node.plan->slots.size());
    const auto first = static_cast<uint32_t>(parts.outputs.size());
    if (node.plan->body == nullptr) {
      add(node, inputs, words);
    } else {
      const CapturedBody& body = *node.plan->body;
      std::vector<uint64_t> all = body.recording.words;
      for (size_t i = 0; i < all.size(); ++i) {
        if (body.operands[i] >= 0) all[i] = words[static_cast<size_t>(body.operands[i])];
      }
      for (const NodeRecord& inner : body.recording.nodes) {
        std::vector<Wire> wires;
        for (size_t i = 0; i < inner.plan->inputs.size(); ++i) {
          const Wire& wire = body.recording.wires[inner.first_wire + i];
          wires.push_back(wire.external ? inputs[wire.index] : Wire{false, first + wire.index});
        }
        add(inner, wires, std::span(all).subspan(inner.first_word, inner.plan->slots.size()));
      }
    }
    for (uint32_t k = 0; k < node.plan->outputs.size(); ++k) {
      places.push_back(first + (node.plan->body == nullptr ? k : node.plan->body->results[k]));
      parts.outputs[places.back()] = whole.outputs[node.first_output + k];
    }
  }
  return has_graphs(parts) ? without_graphs(parts) : parts;
}

}  // namespace

const Plan& zeros_plan(const TensorType& type) {
  static const lowering::Row row{.name = "zeros", .lower = lower_zeros};
  static auto* const plans = new OwnPlans;
  return plans->get({}, type, [](Plan& plan) {
    plan.row = &row;
    plan.name = "empty";
  });
}

ValueRef output_value(const Plan& plan, size_t k, std::span<const OutputForm> forms, int device, State state) {
  const TensorType& stored = plan.outputs[k].base;
  if (forms.empty() || forms[k].changing == 0) return ValueRef(new DeviceValue(stored, device, state));
  auto bounds = std::make_unique<const Bounds>(Bounds{stored.dims, forms[k].changing});
  return ValueRef(new DeviceValue(forms[k].type, device, state, std::move(bounds)));
}

// ---- launching ---------------------------------------------------------------------------------------

// Launches are made on the caller's thread and end on the queue's, thousands per second: tasks and the
// memory of their lists are reused.
class LaunchTask final : public runtime::Task {
 public:
  explicit LaunchTask(Recorder& recorder) : recorder_(recorder) {}

  /// Takes over `recording` and leaves an empty one with spare capacity in its place. Without a program its nodes run
  /// one by one.
  void load(Recording& recording, std::shared_ptr<Program> program) {
    std::swap(recording_, recording);
    program_ = std::move(program);
  }

  void finish() noexcept override {
    recording_.clear();
    program_.reset();
    recorder_.recycle(this);
  }

  void run() noexcept override {
    try {
      if (const auto failed = failed_input()) {
        // What does not depend on the failed input still gives its result.
        is_single(recording_) ? pass_on(failed) : run_one_by_one();
        return;
      }
      program_ != nullptr ? execute(recording_, *program_, program_) : run_one_by_one();
    } catch (const Error& error) {
      // One node of many does not compile, or all together do not fit: alone, the others still give results. A
      // launch that was refused has not taken its donated inputs.
      if (is_single(recording_)) {
        fail_outputs(error);
      } else {
        run_one_by_one();
      }
    } catch (const std::exception& error) {
      fail_outputs(Error(Code::kInternal, error.what()));
    }
  }

 private:
  /// The first error among the inputs, or null.
  std::shared_ptr<const Error> failed_input() const {
    for (const ValueRef& parameter : recording_.parameters) {
      if (parameter->state() == State::kFailed) return parameter->error();
    }
    return nullptr;
  }

  void pass_on(const std::shared_ptr<const Error>& error) {
    for (const ValueRef& output : recording_.outputs) {
      if (output && output->state() == State::kLaunched) output->fail(error);
    }
  }

  void fail_outputs(const Error& error) {
    const NodeRecord& node = recording_.nodes.back();
    const bool alone = recording_.nodes.size() == 1;
    const std::string what = place_of(alone ? node.plan->name : program_->label, node.location) +
                             (alone ? inputs_of(*node.plan) : std::string());
    if (error.code() == Code::kOutOfMemory) runtime::memory_stats(recorder_.device_).count_out_of_memory();
    pass_on(std::make_shared<const Error>(error.code(), what + ": " + error.what()));
  }

  void execute(Recording& recording, const Program& program, const std::shared_ptr<const Program>& shared) {
    const pjrt::Executable& executable = program.executable->wait();
    const pjrt::Device& device = recorder_.context_.device(recorder_.device_);
    std::vector<PJRT_Buffer*> inputs;
    inputs.reserve(recording.parameters.size() + 3);
    for (const ValueRef& parameter : recording.parameters) inputs.push_back(parameter->buffer().raw());
    std::vector<pjrt::Buffer> packed;
    pack_words(recording, device, packed);
    for (const pjrt::Buffer& buffer : packed) inputs.push_back(buffer.raw());

    // Only this task holds a value with one reference, so nobody can come to need it again.
    std::vector<int64_t> keep, give;
    for (int64_t parameter : program.aliased_parameters) {
      const bool shared = recording.parameters[static_cast<size_t>(parameter)]->use_count() > 1;
      (shared ? keep : give).push_back(parameter);
    }
    const auto donatable = static_cast<int64_t>(program.aliased_parameters.size());
    recorder_.donatable_.fetch_add(donatable, std::memory_order_relaxed);
    recorder_.donated_.fetch_add(donatable - static_cast<int64_t>(keep.size()), std::memory_order_relaxed);

    pjrt::ExecuteResult result = executable.execute(inputs, keep, &device, /*want_event=*/true);
    // Their memory is the outputs' now, and must not be counted twice.
    for (int64_t parameter : give) recording.parameters[static_cast<size_t>(parameter)] = ValueRef();
    // Before the outputs: whoever wakes up because one is ready must find its checks.
    if (!program.checks.empty()) {
      Recorder::FlagSet set{std::move(result.outputs.back()), shared, {}};
      for (const ProgramCheck& check : program.checks) {
        const NodeRecord& node = recording.nodes[check.node];
        const bool own = check.name.empty();
        set.nodes.emplace_back(own ? node.plan->name : check.name, own ? node.location : check.location);
      }
      std::lock_guard lock(recorder_.flags_mutex_);
      recorder_.flags_.push_back(std::move(set));
    }
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const ValueRef& output = recording.outputs[program.outputs[i]];
      if (output) output->fulfill(std::move(result.outputs[i]));
    }
    limit_in_flight(std::move(result.done));
  }

  void limit_in_flight(pjrt::Event done) {
    auto& events = recorder_.in_flight_;
    if (done.valid()) events.push_back(std::move(done));
    if (events.size() < kMaxInFlight) return;
    try {
      for (size_t i = 0; i < kMaxInFlight / 2; ++i) events[i].await();
    } catch (const Error&) {
      // The failed values carry the same error; it is raised where they are read.
    }
    events.erase(events.begin(), events.begin() + kMaxInFlight / 2);
  }

  void pack_words(const Recording& recording, const pjrt::Device& device, std::vector<pjrt::Buffer>& packed) {
    if (recording.words.empty()) return;
    std::vector<int64_t> ints;
    std::vector<float> floats;
    std::vector<double> doubles;
    for (const NodeRecord& node : recording.nodes) {
      for (size_t i = 0; i < node.plan->slots.size(); ++i) {
        const uint64_t word = recording.words[node.first_word + i];
        switch (node.plan->slots[i]) {
          case Slot::kInt:
            ints.push_back(static_cast<int64_t>(word));
            break;
          case Slot::kFloat:
            floats.push_back(static_cast<float>(std::bit_cast<double>(word)));
            break;
          case Slot::kDouble:
            doubles.push_back(std::bit_cast<double>(word));
            break;
        }
      }
    }
    const pjrt::Client& client = recorder_.context_.client();
    const auto send = [&](const void* data, size_t count, DType dtype) {
      if (count == 0) return;
      packed.push_back(client.buffer_from_host(data, {dtype, {static_cast<int64_t>(count)}}, device));
    };
    send(ints.data(), ints.size(), DType::kS64);
    send(floats.data(), floats.size(), DType::kF32);
    send(doubles.data(), doubles.size(), DType::kF64);
  }

  void run_one_by_one() noexcept {
    if (has_graphs(recording_)) recording_ = without_graphs(recording_);
    for (const NodeRecord& node : recording_.nodes) {
      for (size_t k = 0; k < node.plan->outputs.size(); ++k) {
        ValueRef& output = recording_.outputs[node.first_output + k];
        if (!output)
          output = ValueRef(new DeviceValue(node.plan->outputs[k].base, recorder_.device_, State::kLaunched));
      }
    }
    for (const NodeRecord& node : recording_.nodes) {
      Recording single;
      const size_t count = node.plan->outputs.size();
      std::vector<ValueRef> outputs(recording_.outputs.begin() + node.first_output,
                                    recording_.outputs.begin() + node.first_output + static_cast<ptrdiff_t>(count));
      const auto fail = [&](const std::shared_ptr<const Error>& error) {
        for (const ValueRef& output : outputs) {
          if (output->state() == State::kLaunched) output->fail(error);
        }
      };
      try {
        single.nodes.push_back({node.plan, node.location, 0, 0, 0});
        std::shared_ptr<const Error> inherited;
        for (size_t i = 0; i < node.plan->inputs.size(); ++i) {
          const Wire& wire = recording_.wires[node.first_wire + i];
          const ValueRef& input = wire.external ? recording_.parameters[wire.index] : recording_.outputs[wire.index];
          if (input->state() == State::kFailed && inherited == nullptr) inherited = input->error();
          single.wires.push_back({true, static_cast<uint32_t>(single.parameters.size())});
          single.parameters.push_back(input);
        }
        if (inherited != nullptr) {
          fail(inherited);
          continue;
        }
        single.words.assign(
            recording_.words.begin() + node.first_word,
            recording_.words.begin() + node.first_word + static_cast<ptrdiff_t>(node.plan->slots.size()));
        single.outputs = outputs;
        const OutputMask all((count + 63) / 64, ~uint64_t{0});
        const std::shared_ptr<Program> program =
            build_program(single, all, recorder_.layout_policy_, recorder_.context_.cache(), "isolating a failure");
        execute(single, *program, program);
      } catch (const Error& error) {
        // A lowering's message names its node already; the plugin's does not.
        const std::string text = error.what();
        const bool named = text.rfind(node.plan->name, 0) == 0;
        const std::string where = place_of(node.plan->name, node.location) + inputs_of(*node.plan);
        fail(std::make_shared<const Error>(error.code(), named ? text : where + ": " + text));
      }
    }
  }

  Recorder& recorder_;
  Recording recording_;
  std::shared_ptr<Program> program_;
};

namespace {

class CallbackTask final : public runtime::Task {
 public:
  explicit CallbackTask(std::function<void()> callback) : callback_(std::move(callback)) {}
  void run() noexcept override { callback_(); }
  void finish() noexcept override { delete this; }

 private:
  std::function<void()> callback_;
};

}  // namespace

// ---- recording ---------------------------------------------------------------------------------------

Recorder& Recorder::of(int device) {
  static std::atomic<Recorder*> recorders[runtime::kMaxDevices];
  if (runtime::Context::in_bad_fork()) runtime::Context::get();  // throws
  const bool known = device >= 0 && device < runtime::kMaxDevices;
  Recorder* made = known ? recorders[device].load(std::memory_order_acquire) : nullptr;
  if (made != nullptr) return *made;
  runtime::Context& context = runtime::Context::get();
  if (device < 0 || device >= context.devices()) {
    throw Error(Code::kInvalidArgument,
                "tpu:" + std::to_string(device) + ": invalid device ordinal, there " +
                    (context.devices() == 1 ? "is 1 device" : "are " + std::to_string(context.devices()) + " devices"));
  }
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (recorders[device].load() == nullptr) recorders[device].store(new Recorder(device), std::memory_order_release);
  return *recorders[device].load();
}

Recorder::Recorder(int device) : device_(device), context_(runtime::Context::get()), programs_(program_memory()) {
  layout_policy_ = layout_policy(context_.client().platform_name());
}

namespace {

// What a capture on one thread has made means nothing on another.
void refuse_captured(const DeviceValue& value) {
  if (value.state() != State::kCaptured) return;
  throw Error(Code::kInvalidArgument, "a tensor of a graph that another thread captures is used on this thread");
}

}  // namespace

void Recorder::append(const Plan& plan, std::span<const ValueRef> inputs, std::span<const uint64_t> words,
                      Location location, std::vector<ValueRef>& outputs, std::span<const OutputForm> forms) {
  NodeRecord node{&plan, location, static_cast<uint32_t>(recording_.wires.size()),
                  static_cast<uint32_t>(recording_.words.size()), static_cast<uint32_t>(recording_.outputs.size())};
  recording_.key.push_back(plan.id);
  recording_.hash = mix(recording_.hash, plan.id);
  for (const ValueRef& input : inputs) {
    DeviceValue::Place& place = input->place;
    const bool pending = input->state() == State::kPending;
    if (!pending && place.recording != number_) {
      place = {number_, static_cast<uint32_t>(recording_.parameters.size()), 0};
      recording_.parameters.push_back(input);
    }
    const Wire wire{!pending, place.index};
    recording_.wires.push_back(wire);
    const uint64_t word = uint64_t{wire.external} << 32 | wire.index;
    recording_.key.push_back(word);
    recording_.hash = mix(recording_.hash, word);
  }
  recording_.words.insert(recording_.words.end(), words.begin(), words.end());
  recording_.nodes.push_back(node);
  for (size_t k = 0; k < plan.outputs.size(); ++k) {
    if (k >= outputs.size()) outputs.push_back(output_value(plan, k, forms, device_, State::kPending));
    outputs[k]->place = {number_, static_cast<uint32_t>(recording_.outputs.size()), 0};
    recording_.outputs.push_back(outputs[k]);
  }
  nodes_.fetch_add(1, std::memory_order_relaxed);
}

ValueRef Recorder::cut(const ValueRef& value, Location location) {
  auto* const slot = new runtime::StorageSlot(ValueRef(), 0);  // a capture may refer to it for longer
  const std::unique_ptr<runtime::StorageSlot, void (*)(runtime::StorageSlot*)> owner(
      slot, [](runtime::StorageSlot* owned) { owned->disown(); });
  runtime::StorageSlot* const targets[] = {slot};
  record(cut_plan(value->stored_type(), value->type()), {value}, {}, targets, location);
  return slot->load();
}

void Recorder::cut_to_fit(const Plan& plan, std::span<ValueRef> inputs, Location location) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Bounds* const bounds = inputs[i]->bounds();
    if (bounds != nullptr && !(bounds->stored == plan.inputs[i].dims)) inputs[i] = cut(inputs[i], location);
  }
}

void Recorder::record(const Plan& plan, std::vector<ValueRef>&& inputs, std::span<const uint64_t> words,
                      std::span<runtime::StorageSlot* const> targets, Location location,
                      std::span<const OutputForm> forms) {
  cut_to_fit(plan, inputs, location);
  if (Capture* const capture = Capture::current()) {
    capture->record(device_, plan, inputs, words, targets, location, forms);
    return;
  }
  for (const ValueRef& input : inputs) refuse_captured(*input);
  std::vector<ValueRef> outputs;
  outputs.reserve(plan.outputs.size());
  const bool debug = mode() == Mode::kDebug;
  context_.queue(device_).wait_for_room();
  {
    std::lock_guard lock(mutex_);
    define_locked(inputs, location);
    append(plan, inputs, words, location, outputs, forms);
    inputs.clear();
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (targets[k] != nullptr) targets[k]->store(outputs[k]);
    }
    if (!debug) outputs.clear();
    if (const char* reason = policy_.after_append(recording_)) flush_locked(reason);
  }
  if (!debug) return;
  for (const ValueRef& output : outputs) {
    output->wait();
    output->buffer().ready_event().await();
  }
  raise_failed_checks();
}

// What the recording has that no program was compiled for.
std::string Recorder::why_compiled(bool known_body) {
  constexpr size_t kRemembered = 4096;
  if (known_body) return "other results are wanted";
  uint64_t operators = recording_.nodes.size();
  for (const NodeRecord& node : recording_.nodes) {
    const Plan& plan = *node.plan;
    operators =
        mix(operators, plan.body != nullptr ? plan.body->recording.nodes.size() : reinterpret_cast<uint64_t>(plan.row));
    operators = mix(operators, reinterpret_cast<uint64_t>(node.location.code));
    operators = mix(operators, static_cast<uint64_t>(node.location.instruction));
  }
  std::vector<TensorType> now;
  for (const ValueRef& parameter : recording_.parameters) now.push_back(parameter->stored_type());
  if (compiled_for_.size() >= kRemembered) compiled_for_.clear();
  const auto [before, first] = compiled_for_.try_emplace(operators, now);
  if (first) return "first program of this line";
  const std::vector<TensorType> last = std::exchange(before->second, now);
  for (size_t i = 0; i < std::min(last.size(), now.size()); ++i) {
    if (!(last[i] == now[i])) return "input is " + to_string(now[i]) + ", was " + to_string(last[i]);
  }
  return "other windows, attributes or numbers";
}

void Recorder::define_locked(std::span<const ValueRef> inputs, Location location) {
  for (const ValueRef& input : inputs) {
    if (input->state() != State::kUndefined) continue;
    input->set_state(State::kPending);
    std::vector<ValueRef> self{input};
    append(zeros_plan(input->stored_type()), {}, {}, location, self);
  }
}

void Recorder::launch(const std::shared_ptr<Program>& program, const Plan& plan, std::vector<ValueRef>&& inputs,
                      std::span<const uint64_t> words, std::span<runtime::StorageSlot* const> targets,
                      Location location) {
  if (Capture* const capture = Capture::current()) capture->block("a loaded program is called, which is one already");
  cut_to_fit(plan, inputs, location);
  for (const ValueRef& input : inputs) refuse_captured(*input);
  context_.queue(device_).wait_for_room();
  {
    std::lock_guard lock(mutex_);
    define_locked(inputs, location);
    flush_locked("loaded program");
    // Not append(): a value that is given twice is two parameters here.
    recording_.nodes.push_back({&plan, location, 0, 0, 0});
    for (size_t i = 0; i < inputs.size(); ++i) recording_.wires.push_back({true, static_cast<uint32_t>(i)});
    recording_.parameters = std::exchange(inputs, {});
    recording_.words.assign(words.begin(), words.end());
    for (size_t k = 0; k < plan.outputs.size(); ++k) {
      recording_.outputs.emplace_back(new DeviceValue(plan.outputs[k].base, device_, State::kPending));
      if (targets[k] != nullptr) targets[k]->store(recording_.outputs.back());
    }
    nodes_.fetch_add(1, std::memory_order_relaxed);
    push_locked(program, OutputMask((recording_.outputs.size() + 63) / 64, ~uint64_t{0}), "loaded program");
  }
  if (mode() == Mode::kDebug) synchronize();
}

void Recorder::flush_locked(const char* reason) {
  if (recording_.empty()) return;
  OutputMask alive((recording_.outputs.size() + 63) / 64, 0);
  for (size_t i = 0; i < recording_.outputs.size(); ++i) {
    // With one reference, the recording's own, nobody can ask for this value any more.
    if (recording_.outputs[i]->use_count() > 1) alive[i / 64] |= uint64_t{1} << (i % 64);
  }
  ProgramCache::Lookup found = programs_.find(recording_, alive);
  if (found.program == nullptr) {
    try {
      found.program =
          build_program(recording_, alive, layout_policy_, context_.cache(), why_compiled(found.known_body));
      const auto removed = programs_.insert(recording_, alive, found.program);
      if (!removed.empty()) context_.cache().discard({removed.begin(), removed.end()});
    } catch (const Error& error) {
      // One of many nodes is at fault: the queue runs them one by one, so that the others give their results.
      if (is_single(recording_)) {
        const auto shared = std::make_shared<const Error>(error);
        for (const ValueRef& output : recording_.outputs) output->fail(shared);
        recording_.clear();
        policy_.reset();
        ++number_;
        throw;
      }
    }
  }
  push_locked(std::move(found.program), alive, reason);
}

// Without a program the nodes run one by one.
void Recorder::push_locked(std::shared_ptr<Program> program, const OutputMask& alive, const char* reason) {
  if (log::enabled(2)) {
    const std::string what = program != nullptr ? program->label : "one by one";
    log::line("launch " + what + ", " + std::to_string(recording_.nodes.size()) + " nodes, cut by " + reason);
  }
  for (size_t i = 0; i < recording_.outputs.size(); ++i) {
    // What nobody wants is dropped here: freeing it on the thread that made it is cheaper.
    if ((alive[i / 64] >> (i % 64) & 1) == 0) {
      recording_.outputs[i] = ValueRef();
    } else {
      recording_.outputs[i]->set_state(State::kLaunched);
    }
  }
  launches_.fetch_add(1, std::memory_order_relaxed);
  LaunchTask* task = fresh_task();
  task->load(recording_, std::move(program));
  policy_.reset();
  ++number_;
  context_.queue(device_).push(task);
}

LaunchTask* Recorder::fresh_task() {
  {
    std::lock_guard lock(spare_mutex_);
    if (!spare_.empty()) {
      LaunchTask* task = spare_.back();
      spare_.pop_back();
      return task;
    }
  }
  return new LaunchTask(*this);
}

void Recorder::recycle(LaunchTask* task) {
  constexpr size_t kSpare = 64;
  {
    std::lock_guard lock(spare_mutex_);
    if (spare_.size() < kSpare) {
      spare_.push_back(task);
      return;
    }
  }
  delete task;
}

void Recorder::flush(const char* reason) {
  std::lock_guard lock(mutex_);
  flush_locked(reason);
}

void Recorder::wait(const ValueRef& value) {
  waits_.fetch_add(1, std::memory_order_relaxed);
  if (const Capture* const capture = Capture::current()) capture->refuse_to_read(*value);
  refuse_captured(*value);
  if (value->state() == State::kUndefined) {
    const Location here = capture_location();  // may need the GIL, so before the lock
    std::lock_guard lock(mutex_);
    if (value->state() == State::kUndefined) {
      value->set_state(State::kPending);
      std::vector<ValueRef> self{value};
      append(zeros_plan(value->stored_type()), {}, {}, here, self);
    }
  }
  if (value->state() == State::kPending) flush("read");
  value->wait();
  raise_failed_checks();
}

void Recorder::raise_failed_checks() {
  std::vector<FlagSet> sets;
  {
    std::lock_guard lock(flags_mutex_);
    std::swap(sets, flags_);
  }
  for (const FlagSet& set : sets) {
    std::vector<char> flags(set.program->checks.size());
    set.flags.copy_to_host(flags.data(), flags.size());
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] == 0) continue;
      const ProgramCheck& check = set.program->checks[i];
      throw Error(check.code, place_of(set.nodes[i].first, set.nodes[i].second) + ": " + check.message);
    }
  }
}

void Recorder::synchronize() {
  waits_.fetch_add(1, std::memory_order_relaxed);
  // Shared, since an interrupted wait leaves the callback behind.
  const auto done = std::make_shared<WaitWord>();
  when_done([done] { done->publish(1); });
  done->wait_while(0);
  raise_failed_checks();
}

void Recorder::read(const ValueRef& value, void* destination) {
  wait(value);
  const size_t bytes = value->type().bytes();
  if (bytes == 0) return;
  const Bounds* const bounds = value->bounds();
  if (context_.host_readable()) {
    value->buffer().ready_event().await();
    const void* const source = value->buffer().unsafe_pointer();
    bounds ? copy_from_stored(value->type(), bounds->stored, source, destination)
           : static_cast<void>(std::memcpy(destination, source, bytes));
  } else if (bounds) {
    std::vector<char> stored(value->stored_type().bytes());
    value->buffer().copy_to_host(stored.data(), stored.size());
    copy_from_stored(value->type(), bounds->stored, stored.data(), destination);
  } else {
    value->buffer().copy_to_host(destination, bytes);
  }
}

void Recorder::when_done(std::function<void()> callback) {
  flush("event");
  when_launched_done(std::move(callback));
}

void Recorder::when_launched_done(std::function<void()> callback) {
  context_.queue(device_).push(new CallbackTask([this, callback = std::move(callback)] {
    for (const pjrt::Event& event : in_flight_) {
      try {
        event.await();
      } catch (const Error&) {
        // Surfaces where the failed values are read, with their operator and line.
      }
    }
    in_flight_.clear();
    callback();
  }));
}

Recorder::Statistics Recorder::statistics() const {
  return {nodes_.load(), launches_.load(), donated_.load(), donatable_.load(), waits_.load()};
}

void Recorder::clear_programs() {
  std::vector<std::shared_ptr<Program>> programs;
  {
    std::lock_guard lock(mutex_);
    programs = programs_.clear();
  }
  runtime::CompileCache::discard_now(
      {std::make_move_iterator(programs.begin()), std::make_move_iterator(programs.end())});
}

size_t Recorder::pending_nodes() {
  std::lock_guard lock(mutex_);
  return recording_.nodes.size();
}

}  // namespace tpu::graph
