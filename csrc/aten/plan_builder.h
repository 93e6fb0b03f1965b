#pragma once
// From a signature to a plan: metadata from PyTorch, argument templates, what becomes of the results.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "aten/metadata.h"
#include "graph/plan.h"
#include "graph/recorder.h"

namespace tpu::aten {

/// A plan and how a call feeds it.
struct PlannedCall {
  const graph::Plan* plan = nullptr;  // lives for ever
  std::vector<uint32_t> input_uses;   // tensor use of each plan input
  struct WindowUse {
    uint32_t use;
    graph::Layout layout;
    uint32_t first_slot;
  };
  std::vector<WindowUse> windows;                      // those with run-time starts
  std::vector<std::pair<uint32_t, uint32_t>> scalars;  // (scalar use, slot)
  std::vector<int32_t> targets;  // per output: tensor use that is written, -1 - new tensor, or kSuperseded
  static constexpr int32_t kSuperseded = INT32_MIN;  // another output holds this one's window and its own
  struct NewTensor {
    Dims sizes, strides;
    c10::ScalarType dtype;
    size_t bytes;
  };
  std::vector<std::optional<NewTensor>> created;  // per returned result; nullopt: undefined tensor
  uint64_t random_blocks = 0;
  /// Of a bounded plan: the call's sizes, as (slot, word), and what its outputs are.
  std::vector<std::pair<uint32_t, uint64_t>> sizes;
  std::vector<graph::OutputForm> forms;
  std::vector<int64_t> changing;  // sizes of the arguments' dims that change
};

/// Bounded plans of one operator, which calls of many sizes share. Thread-safe.
class SharedPlans {
 public:
  /// The plan with this key. `make` is called without a lock where there is none.
  const graph::Plan* get(const std::vector<uint64_t>& key, const std::function<std::unique_ptr<graph::Plan>()>& make);

 private:
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::pair<std::vector<uint64_t>, const graph::Plan*>> plans_;
};

/// An out tensor has the wrong size: resize it and parse again.
struct ResizeOut {
  size_t out;  // number among the written tensors
  Dims sizes;
  Dims strides;  // as PyTorch's kernel lays it out; column by column for factors of matrices
};

/// `dynamic_scalars`: numbers that are neither fixed nor run-time become run-time operands too.
std::variant<std::unique_ptr<PlannedCall>, ResizeOut> build_plan(const Operator& op, const Signature& signature,
                                                                 at::ArrayRef<c10::IValue> arguments,
                                                                 bool dynamic_scalars);

/// A call whose sizes change, planned for their bounds (graph/plan.h). Null where the row has no rule for it, or the
/// tensors' windows cut across a changing dim: then it is planned for its own sizes. Raises as build_plan does.
std::unique_ptr<PlannedCall> build_bounded_plan(const Operator& op, const Signature& signature,
                                                at::ArrayRef<c10::IValue> arguments, bool dynamic_scalars,
                                                SharedPlans& shared);

}  // namespace tpu::aten
