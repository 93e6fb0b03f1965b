#pragma once
// Counted loops for lowerings that StableHLO cannot state as one operation (factorisations, grouped
// products). Nothing is captured: everything the body reads is carried, which every compiler accepts.

#include <functional>
#include <span>
#include <vector>

#include "lowering/helpers.h"

namespace tpu::lowering {

/// One step: `index` is the 0-d i32 counter, `state` the values that change, `fixed` those that do not.
/// Returns the new state.
using LoopBody =
    std::function<std::vector<Value>(Value index, std::span<const Value> state, std::span<const Value> fixed)>;

/// Runs `body` for index 0 .. count - 1 (`count` is a 0-d i32 value) and returns the last state.
std::vector<Value> counted_loop(Value count, std::span<const Value> state, std::span<const Value> fixed,
                                const LoopBody& body);

/// Entry `index` (0-d i32) of a 1-d value, as a 0-d value.
Value element_at(Value list, Value index);

/// i32 iota of `sizes` along `axis`.
Value index_along(Builder& builder, const Dims& sizes, int64_t axis);

}  // namespace tpu::lowering
