#pragma once
// From a signature to a plan: metadata from PyTorch, argument templates, what becomes of the results.

#include <cstdint>
#include <memory>

#include "aten/metadata.h"
#include "graph/plan.h"

namespace tpu::aten {

/// A plan and how a call feeds it.
struct PlannedCall {
  graph::Plan plan;
  std::vector<uint32_t> input_uses;  // tensor use of each plan input
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

}  // namespace tpu::aten
