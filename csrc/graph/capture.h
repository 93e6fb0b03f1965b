#pragma once
// Capture: while one is active on a thread, what the thread records is put aside instead of being launched.
// When it ends, those nodes become the body of one plan, a captured graph, which the recorder then takes like any other
// operator: one node of a recording, one program in strict mode, fused with its neighbours in fused mode.
//
// There are two kinds. A CallCapture makes a function of arguments that were declared; all other tensors are constants
// of it. A SlotCapture (slot_capture.h) knows tensors by their storage and works on them where they lie.
//
// Not thread-safe; a capture belongs to the thread that made it.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/program.h"
#include "runtime/storage_slot.h"

namespace tpu::graph {

/// Seed and offset of one random node.
struct RandomDraw {
  uint64_t seed = 0, offset = 0;
};

/// A generator, as captures see it.
struct RandomStream {
  const void* generator = nullptr;
  std::function<RandomDraw(uint64_t blocks)> take;  // what it stands at; then it goes on by `blocks`
  std::function<void(RandomDraw)> set;
};

/// What a random node draws at each launch.
struct DrawRandom {
  std::shared_ptr<const RandomStream> stream;
  uint64_t blocks = 0;
  RandomDraw operator()() const { return stream->take(blocks); }
};

/// A plan with a body. Lives for ever, as plans do.
struct CapturedGraph {
  Plan plan;
  /// Per plan input: the number of the argument, or -1 for the next constant.
  std::vector<int32_t> sources;
  std::vector<uint64_t> blocks;  // per random node: by how much it moves its generator
};

/// A captured graph with what a launch feeds it.
struct CapturedFunction {
  const CapturedGraph* graph = nullptr;
  std::vector<runtime::ValueRef> constants;  // values from outside that were not arguments
  std::vector<DrawRandom> draws;             // two words each
  std::vector<uint64_t> words;               // the plan's words after those
};

struct OutputForm;

class Capture {
 public:
  /// What the capture made and nobody took can never be computed: it fails with an error that says so.
  virtual ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// The capture that is active on this thread, or nullptr.
  static Capture* current();

  int device() const { return device_; }
  /// Whether some sizes may be others in the next capture of this graph.
  bool bounded() const { return bounded_; }
  /// Notes a size that dims which change have here, and what they are stored in.
  void changes_to(int64_t size, int64_t bound);
  /// What dims of this size are stored in, or 0 if none is known to change.
  int64_t changing_bound(int64_t size) const;
  /// The same before anything is captured, for every size that changes: none has to be guessed.
  void set_sizes(std::span<const std::pair<int64_t, int64_t>> sizes_and_bounds);
  bool knows_sizes() const { return knows_sizes_; }
  /// What the next node draws: one for a random operator, all of a graph's for a captured graph.
  void next_random(std::vector<DrawRandom> draws) { next_draws_ = std::move(draws); }
  /// Says in which slot an input of the next node lies.
  void lies_in(const runtime::ValueRef& value, runtime::StorageSlot& slot);
  /// Called by the recorder instead of recording. Throws where the node cannot be part of the graph.
  void record(int device, const Plan& plan, std::span<const runtime::ValueRef> inputs, std::span<const uint64_t> words,
              std::span<runtime::StorageSlot* const> targets, Location location, std::span<const OutputForm> forms);

  /// Throws for a value that only a launch of the captured graph will make.
  virtual void refuse_to_read(const runtime::Value& value) const = 0;
  /// Throws where the graph must not depend on what the host holds now.
  virtual void refuse_host_data() const {}
  /// Throws for a slot whose size the graph must not change.
  virtual void refuse_to_resize(const runtime::StorageSlot&) const {}
  /// Whether nothing is lost when a value is stored in `slot` without a node.
  virtual bool may_store(const runtime::StorageSlot& slot) const;

  /// Throws: what was called cannot be captured, for `reason`.
  [[noreturn]] void block(const char* reason) const;
  /// Why what was called cannot be captured; empty while all could.
  const std::string& blocked() const { return blocked_; }
  /// Whether `value` was made by a captured node.
  bool made(const runtime::Value& value) const;

 protected:
  explicit Capture(int device);

  void append(const Plan& plan, std::span<const Wire> wires, std::span<const uint64_t> words, Location location,
              std::span<const OutputForm> forms);
  /// Makes `value` a parameter of the recording.
  Wire parameter(const runtime::ValueRef& value);
  /// The value, kept from now on, stands for what `wire` leads to.
  void know(const runtime::ValueRef& value, Wire wire);
  const Wire* wire_of(const runtime::Value& value) const;
  /// The slot that holds an input of the node being recorded, or none.
  runtime::Ref<runtime::StorageSlot> place_of(const runtime::Value& value) const;

  Recording recording_;
  bool bounded_ = false;  // some sizes may be others in the next capture of this graph

 private:
  /// Throws where a target must not be written.
  virtual void before_write(std::span<runtime::StorageSlot* const> targets) = 0;
  /// The wire of a value that was neither declared nor made here.
  virtual Wire from_outside(const runtime::ValueRef& value, Location location) = 0;
  /// A node was appended, with these draws.
  virtual void appended(const NodeRecord& node, std::vector<DrawRandom> draws) = 0;

  const int device_;
  Capture* const outer_;
  std::vector<DrawRandom> next_draws_;
  std::vector<std::pair<runtime::ValueRef, runtime::Ref<runtime::StorageSlot>>> next_places_;
  std::vector<std::pair<int64_t, int64_t>> changing_sizes_;  // with their bounds
  bool knows_sizes_ = false;
  mutable std::string blocked_;
  std::unordered_map<const runtime::Value*, Wire> wires_;
  std::vector<runtime::ValueRef> keep_;  // so that no address in `wires_` is used twice
};

class CallCapture final : public Capture {
 public:
  explicit CallCapture(int device) : Capture(device) {}

  /// Declares the next argument, a value that no launch has made.
  runtime::ValueRef argument(TensorType type, std::unique_ptr<const Bounds> bounds = nullptr);
  void refuse_to_read(const runtime::Value& value) const override;

  /// Ends the capture. The graph gives `results`, values that captured nodes made; those with an argument's number in
  /// `replaces` (else -1) may take over its memory. `again`: the same function may be captured many times, so look for
  /// a graph of the same nodes and numbers among those that were captured like this.
  CapturedFunction finish(std::span<const runtime::ValueRef> results, std::span<const int32_t> replaces,
                          bool again = false);

 private:
  void before_write(std::span<runtime::StorageSlot* const> targets) override;
  Wire from_outside(const runtime::ValueRef& value, Location location) override;
  void appended(const NodeRecord& node, std::vector<DrawRandom> draws) override;

  std::vector<int32_t> sources_;  // per parameter of the recording
  std::vector<runtime::ValueRef> constants_;
  std::vector<DrawRandom> draws_;
  struct OpenWord {
    uint32_t word;
    Slot slot;
  };
  CapturedGraph make_graph(std::span<const runtime::ValueRef> results, std::span<const int32_t> replaces) const;

  std::vector<OpenWord> random_words_, size_words_;
  int32_t arguments_ = 0;
};

/// What the nodes of a recording are, as words: plans, wires and lines. Not the numbers that they are given.
std::vector<uint64_t> sequence_key(const Recording& recording);

/// First of the words that node's draws fill, relative to those of the node; how many draws it has.
std::pair<uint32_t, uint32_t> random_words(const Plan& plan);

}  // namespace tpu::graph
