#pragma once
// Operators whose parts are captured graphs: one of two is computed, one as long as another says so, one for each slice
// of arrays. They are nodes like any other; their parts become regions of the program.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/plan.h"

namespace tpu::graph {

struct CapturedGraph;

/// What makes the outputs of a plan without a row. The plan's inputs are the arguments, then the constants of each
/// part.
struct ControlFlow {
  enum class Kind : uint8_t {
    /// Parts: if true, if false. Arguments: a 0-d bool, then those of both parts. Outputs: those of either part.
    kBranch,
    /// Parts: the condition, which gives a 0-d bool, and the body. Arguments of both: the `carried` values, of which
    /// the body gives new ones, then others. Outputs: what is carried when the condition is false.
    kWhile,
    /// Part: the body. Arguments: `carried` values, `sliced` arrays of `length` slices along dim 0, others; the body
    /// takes a slice of each array, and gives new carried values, then slices of results. Outputs: the last carried
    /// values, then the results.
    kScan,
  };
  struct Part {
    const CapturedGraph* graph = nullptr;
    uint32_t first_constant = 0;  // the input of the plan that is its first constant
    uint32_t checks = 0;          // how many its nodes make
  };

  Kind kind = Kind::kBranch;
  std::vector<Part> parts;
  uint32_t carried = 0, sliced = 0;
  int64_t length = 0;
};

/// A part; it draws random numbers only in a scan, all from one generator, and has no other words. Checks are counted
/// by lowering the graph: throws what that throws.
ControlFlow::Part part_of(const CapturedGraph& graph);

/// The plan of `flow` with arguments of these types, the same for the same parts. It lives for ever. Where a
/// scan's body draws random numbers the plan draws once for all slices, `random_blocks`.
const Plan& control_flow_plan(std::string name, ControlFlow flow, std::span<const TensorType> arguments);
uint64_t random_blocks(const ControlFlow& flow);

/// Emits the plan of a control flow. A check is a flag of the whole: what is not computed does not fail, and a loop
/// ends with the first failure.
LoweredNode lower_control_flow(const Plan& plan, stablehlo::Builder& builder, const NodeValues& values,
                               const LayoutPolicy& policy);

}  // namespace tpu::graph
