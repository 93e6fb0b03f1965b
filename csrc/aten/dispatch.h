#pragma once
// The boxed kernel that every operator of the row table is registered with: signature, plan, node.

#include <ATen/core/boxing/KernelFunction.h>

#include <mutex>
#include <unordered_map>

#include "aten/operator.h"
#include "aten/plan_builder.h"

namespace tpu::aten {

/// Plans of one operator by signature. Full keys are compared. Thread-safe.
class PlanTable {
 public:
  using Scalars = c10::SmallVector<lowering::Scalar, 2>;
  struct Found {
    const PlannedCall* plan = nullptr;
    std::shared_ptr<const PlannedCall> held;  // keeps a plan of one of many sizes while it is used
    std::optional<ResizeOut> resize;
    bool refused = false;  // the lowering does not cover this signature
  };
  /// Looks the signature up and builds the plan on a miss. Raises what building raises.
  Found get(const Operator& op, Signature& signature, at::ArrayRef<c10::IValue> arguments);

 private:
  struct Variant {
    Scalars scalars;
    std::unique_ptr<PlannedCall> plan;
    uint64_t origin = 0, capture = 0;  // of the slot capture that it was made in (graph/slot_capture.h)
  };
  struct Entry {
    std::vector<uint64_t> key;
    std::vector<Variant> variants;         // one per set of scalar values seen
    std::unique_ptr<PlannedCall> dynamic;  // scalars as run-time operands
    std::optional<ResizeOut> resize;
    bool refused = false;
  };
  /// Calls whose sizes change: there may be one for each size, so that only the latest are kept.
  struct BoundedEntry {
    std::vector<uint64_t> key;
    Scalars scalars;
    bool dynamic = false;  // serves all values
    std::shared_ptr<const PlannedCall> call;
  };
  static constexpr size_t kBoundedEntries = 512;
  Entry* find(uint64_t hash, const Signature& signature);
  /// Whether the numbers of a call should be operands although no other values of them were seen.
  static bool likely_to_vary(const Operator& op, const Signature& signature);
  /// Whether they were other ones in an earlier capture of the function that is being captured.
  static bool varies(const Entry& entry);
  bool numbers_change(const Signature& signature);
  Found get_bounded(const Operator& op, const Signature& signature, at::ArrayRef<c10::IValue> arguments, uint64_t hash,
                    bool dynamic);

  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Entry>> entries_;
  std::unordered_multimap<uint64_t, BoundedEntry> bounded_;
  SharedPlans shared_;
  std::unordered_map<uint64_t, std::vector<Scalars>> bounded_scalars_;  // distinct ones, by place
};

class RowKernel final : public c10::OperatorKernel {
 public:
  explicit RowKernel(Operator op) : op_(std::move(op)) {}
  const Operator& op() const { return op_; }
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  void run_resolved(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void resize_factory_output(at::ArrayRef<c10::IValue> arguments) const;
  void bound_factory_output(const at::Tensor& out) const;
  /// For rows whose out= may not share memory with an input at all.
  void refuse_shared_output(at::ArrayRef<c10::IValue> arguments) const;
  void refuse_partial_overlap(const Signature& signature, at::ArrayRef<c10::IValue> arguments) const;
  void launch(const PlannedCall& call, Signature& signature, torch::jit::Stack* stack);
  void push_results(const PlannedCall& call, std::vector<at::Tensor> created, torch::jit::Stack* stack) const;

  const Operator op_;
  PlanTable plans_;
};

}  // namespace tpu::aten
