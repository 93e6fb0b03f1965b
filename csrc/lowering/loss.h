#pragma once
// What loss functions share: operands broadcast together, the reduction argument, and its scale backwards.

#include "lowering/elementwise.h"

namespace tpu::lowering {

/// PyTorch's `reduction` argument.
enum class Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

inline Reduction reduction_of(const OpCall& call, size_t i) { return static_cast<Reduction>(call.integer(i)); }

/// Sizes to which tensor arguments `i` and `j` broadcast.
Dims common_sizes(const OpCall& call, size_t i, size_t j);

/// Argument `i` in the work type, broadcast to `sizes`.
Value loss_operand(const OpCall& call, size_t i, const Dims& sizes);

/// Elementwise `loss` reduced as asked and rounded to result 0's dtype.
Values reduce_loss(const OpCall& call, Value loss, Reduction reduction);

/// Incoming gradient (argument 0) broadcast to `sizes` and divided by the element count for a mean.
Value scaled_gradient(const OpCall& call, const Dims& sizes, Reduction reduction);

/// Sum over all axes, 0-d.
Value sum_all(Value x);

std::span<const Row> loss_class_rows();  // losses whose target is a class index
std::span<const Row> loss_ctc_rows();

}  // namespace tpu::lowering
