#pragma once
// Capture: while one is active on a thread, what the thread records is put aside instead of being launched.
// When it ends, those nodes become the body of one plan, a captured graph, which the recorder then takes like any other
// operator: one node of a recording, one program in strict mode, fused with its neighbours in fused mode.
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

/// Seed and offset of one random node, drawn anew for each launch.
struct RandomDraw {
  uint64_t seed = 0, offset = 0;
};
struct DrawRandom {
  std::function<RandomDraw()> draw;
  uint64_t blocks = 0;  // by how much it moves the generator's offset
  RandomDraw operator()() const { return draw(); }
};

/// A plan with a body, and what a launch feeds it. Lives for ever, as plans do.
struct CapturedGraph {
  Plan plan;
  /// Per plan input: the number of the argument, or -1 for the next of `constants`.
  std::vector<int32_t> sources;
  std::vector<runtime::ValueRef> constants;  // values from outside that were not arguments
  std::vector<DrawRandom> draws;             // two words each
  std::vector<uint64_t> words;               // the plan's words after those
};

struct OutputForm;

class Capture {
 public:
  explicit Capture(int device);
  /// What the capture made and nobody took can never be computed: it fails with an error that says so.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// The capture that is active on this thread, or nullptr.
  static Capture* current();

  /// Declares the next argument, a value that no launch has made.
  runtime::ValueRef argument(TensorType type, std::unique_ptr<const Bounds> bounds = nullptr);
  /// What the next node draws from at each launch: one for a random operator, all of a graph's for a captured graph.
  void next_random(std::vector<DrawRandom> draws) { next_draws_ = std::move(draws); }
  /// Called by the recorder instead of recording. Throws where the node writes to a tensor from outside that is no
  /// argument.
  void record(int device, const Plan& plan, std::span<const runtime::ValueRef> inputs, std::span<const uint64_t> words,
              std::span<runtime::StorageSlot* const> targets, Location location, std::span<const OutputForm> forms);
  /// Throws for a value that only a launch of the captured graph will make.
  void refuse_to_read(const runtime::Value& value) const;
  /// Throws: what was called cannot be captured, for `reason`.
  [[noreturn]] void block(const char* reason) const;
  /// Why what was called cannot be captured; empty while all could.
  const std::string& blocked() const { return blocked_; }
  /// Whether `value` was made by a captured node.
  bool made(const runtime::Value& value) const;

  /// Ends the capture. The graph gives `results`, values that captured nodes made; those with an argument's number in
  /// `replaces` (else -1) may take over its memory.
  const CapturedGraph& finish(std::span<const runtime::ValueRef> results, std::span<const int32_t> replaces);

 private:
  void refuse_to_write(std::span<runtime::StorageSlot* const> targets) const;
  Wire wire_of(const runtime::ValueRef& input, Location location);
  void append(const Plan& plan, std::span<const Wire> wires, std::span<const uint64_t> words, Location location,
              std::span<const OutputForm> forms);
  void open_words(const Plan& plan, uint32_t first);

  const int device_;
  Capture* const outer_;
  Recording recording_;
  std::vector<int32_t> sources_;  // per parameter of the recording
  std::vector<runtime::ValueRef> constants_;
  std::vector<DrawRandom> draws_;
  struct OpenWord {
    uint32_t word;
    Slot slot;
  };
  std::vector<OpenWord> random_words_, size_words_;
  bool bounded_ = false;  // some sizes may be others in the next capture of this graph
  std::vector<DrawRandom> next_draws_;
  int32_t arguments_ = 0;
  mutable std::string blocked_;
  std::unordered_map<const runtime::Value*, Wire> wires_;
  std::vector<runtime::ValueRef> keep_;  // so that no address in `wires_` is used twice
};

}  // namespace tpu::graph
