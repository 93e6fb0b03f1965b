#pragma once
// Emits the nodes of a recording one after the other.

#include <span>
#include <utility>
#include <vector>

#include "graph/program.h"

namespace tpu::graph {

/// A word of a node: an operand of the program, or a constant.
struct Word {
  Value operand;  // 0-d, or undefined: then the constant
  Slot slot = Slot::kInt;
  uint64_t bits = 0;
};

struct LoweredNodes {
  std::vector<Value> values;  // by flat output; undefined where only a shared part needs it
  std::vector<std::pair<uint32_t, LoweredNode::Check>> checks;  // with the number of their node
};

/// What repeats, such as the layers of a model, becomes a function that is called: the compiler reads it once, and
/// inlines it before anything else. `words`: per word of the recording. `wanted`: outputs that are results.
LoweredNodes lower_nodes(stablehlo::Builder& builder, const Recording& recording, std::span<const Value> parameters,
                         std::span<const Word> words, const OutputMask& wanted, const LayoutPolicy& policy);

}  // namespace tpu::graph
