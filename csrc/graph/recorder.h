#pragma once
// Recorder: takes nodes in program order and launches them on the device's queue. One per device, shared by
// all threads and streams of the process (streams are ordered among themselves more strongly than they need
// to be), guarded by one lock that is never held across a plugin call or a wait.

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/policy.h"
#include "graph/program.h"
#include "runtime/context.h"
#include "runtime/storage_slot.h"

namespace tpu::graph {

class LaunchTask;

/// What a value is outside of programs, where its plan's output only says how it is stored.
struct OutputForm {
  TensorType type;
  uint64_t changing = 0;  // Bounds::dims
};

/// The plan that gives an allocated but never written value its (zero) contents.
const Plan& zeros_plan(const TensorType& type);

/// A value to come, of output `k` of a plan.
runtime::ValueRef output_value(const Plan& plan, size_t k, std::span<const OutputForm> forms, int device,
                               runtime::Value::State state);

class Recorder {
 public:
  /// The recorder of a device; creates the client at first use.
  static Recorder& of(int device);

  /// Appends a node; its outputs (pending values) go to `targets`, one slot per output of the plan (null: the
  /// output is not wanted). `words` has one entry per slot of the plan. Inputs are given up before anything
  /// is launched, so that a value which only this node needs can be donated.
  /// `forms` has one entry per output where the plan is bounded, else none. Inputs that are stored in a larger array
  /// than the plan takes are cut first.
  void record(const Plan& plan, std::vector<runtime::ValueRef>&& inputs, std::span<const uint64_t> words,
              std::span<runtime::StorageSlot* const> targets, Location location,
              std::span<const OutputForm> forms = {});
  /// Launches a program that no recording made, after all that was recorded: its parameters are `inputs`, then `words`
  /// packed, its results `targets`, then its checks' flags. `plan` names it and has the types. Throws while a graph is
  /// captured.
  void launch(const std::shared_ptr<Program>& program, const Plan& plan, std::vector<runtime::ValueRef>&& inputs,
              std::span<const uint64_t> words, std::span<runtime::StorageSlot* const> targets, Location location);
  /// Launches what was recorded. `reason` is for the log.
  void flush(const char* reason);
  /// Makes `value` ready, or throws its error. Raises failed checks of everything launched before. All waits of this
  /// class can be interrupted on the main thread (base/waiting.h).
  void wait(const runtime::ValueRef& value);
  /// Waits for everything recorded so far; raises failed checks.
  void synchronize();
  /// Copies a value's bytes to host memory (dense row-major).
  void read(const runtime::ValueRef& value, void* destination);
  /// Runs `callback` on the queue after everything recorded so far has finished on the device.
  void when_done(std::function<void()> callback);
  /// The same after everything launched so far; what is recorded and not launched stays so.
  void when_launched_done(std::function<void()> callback);

  struct Statistics {
    int64_t nodes = 0, launches = 0, donated = 0, donatable = 0, waits = 0;
  };
  Statistics statistics() const;
  /// Forgets compiled programs; those in use live on until their launch has run.
  void clear_programs();
  size_t pending_nodes();

 private:
  friend class LaunchTask;
  explicit Recorder(int device);
  runtime::ValueRef defined(const runtime::ValueRef& value);
  void append(const Plan& plan, std::span<const runtime::ValueRef> inputs, std::span<const uint64_t> words,
              Location location, std::vector<runtime::ValueRef>& outputs, std::span<const OutputForm> forms = {});
  runtime::ValueRef cut(const runtime::ValueRef& value, Location location);
  void cut_to_fit(const Plan& plan, std::span<runtime::ValueRef> inputs, Location location);
  void define_locked(std::span<const runtime::ValueRef> inputs, Location location);
  void flush_locked(const char* reason);
  std::string why_compiled(bool known_body);
  void push_locked(std::shared_ptr<Program> program, const OutputMask& alive, const char* reason);
  void raise_failed_checks();
  LaunchTask* fresh_task();
  void recycle(LaunchTask* task);

  struct FlagSet {
    pjrt::Buffer flags;
    std::shared_ptr<const Program> program;
    std::vector<std::pair<std::string, Location>> nodes;  // name and place of each check's node
  };

  const int device_;
  runtime::Context& context_;
  LayoutPolicy layout_policy_;
  std::mutex mutex_;
  Recording recording_;
  uint64_t number_ = 1;  // of the recording; Value::place refers to it
  FlushPolicy policy_;
  ProgramCache programs_;
  /// Types of the parameters of the latest program of the same operators, by these; for the log.
  std::unordered_map<uint64_t, std::vector<TensorType>> compiled_for_;

  std::mutex spare_mutex_;
  std::vector<LaunchTask*> spare_;

  std::mutex flags_mutex_;
  std::vector<FlagSet> flags_;
  std::vector<pjrt::Event> in_flight_;  // queue thread only
  std::atomic<int64_t> nodes_{0}, launches_{0}, donated_{0}, donatable_{0}, waits_{0};
};

}  // namespace tpu::graph
