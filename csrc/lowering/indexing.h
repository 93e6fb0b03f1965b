#pragma once
// Gathers and scatters shared by the indexing rows (indexing*.cpp) and by other families that look rows up.
// All helpers are pure: values in, values out. An index that StableHLO would clamp (gather) or drop (scatter)
// must never give a plausible number, so indices first pass through checked_index, which reports the bad ones.

#include <functional>
#include <span>
#include <string>

#include "lowering/helpers.h"
#include "lowering/op_call.h"
#include "lowering/table.h"

namespace tpu::lowering {

/// Type for positions below `limit`: int32 where it fits, since 64-bit integers are slow on accelerators.
DType index_dtype(int64_t limit);

/// 0-d i1: whether any element of `mask` (any rank) is true.
Value any_true(Value mask);

/// How an operator reads indices and reports bad ones: CPU kernels differ in both.
struct IndexRule {
  bool wrap_negative = false;
  Code code = Code::kIndex;
  std::string message;  // empty: "index is out of bounds for dimension <axis> with size <size>"
  /// The present size (0-d s64), where `size` is that of a larger array (lowering/bounded.h).
  std::optional<Value> present = std::nullopt;
};

/// `index` (any integer dtype) as positions in [0, size) of index_dtype(size), with negative ones wrapped if
/// the rule says so, and a device-side check that every one was in range.
Value checked_index(const OpCall& call, Value index, int64_t size, int64_t axis, const IndexRule& rule);

/// Slices of `x` along `axis`: result dims are x.dims[:axis] + index.dims + x.dims[axis+1:].
/// `index` holds positions in range, any rank.
Value take_slices(Value x, Value index, int64_t axis);

/// Element (i, j, k) is x[i, index[i, j, k], k] for axis 1: torch.gather. Dims of `index` other than `axis` may
/// be smaller than x's. `index` holds positions in range.
Value take_along_axis(Value x, Value index, int64_t axis);

/// What a scatter does with the old element and the update.
enum class Combine { kReplace, kAdd, kMultiply, kMaximum, kMinimum };

/// Inverse of take_slices for 1-d `index`: updates have x's dims, with `axis` as long as `index`. Positions out
/// of range are dropped.
Value scatter_slices(Value x, Value index, Value updates, int64_t axis, Combine combine);

/// Inverse of take_along_axis: updates have the dims of `index`.
Value scatter_along_axis(Value x, Value index, Value updates, int64_t axis, Combine combine);

/// Applies one scatter (of any form) to `x`.
using ScatterTo = std::function<Value(Value x, Value updates, Combine combine)>;

/// scatter_reduce: `reduce` is sum, prod, mean, amax or amin. Without `include_self` the elements that receive an
/// update start from the neutral element. Both values have the compute type.
Value scatter_reduction(Value x, Value updates, const std::string& reduce, bool include_self,
                        const ScatterTo& scatter_to);

/// Inclusive running sum of a 1-d integer value.
Value running_sum(Value x);

// Rows by file; indexing_rows() joins them.
std::span<const Row> advanced_indexing_rows();
std::span<const Row> scatter_rows();
std::span<const Row> embedding_rows();
std::span<const Row> segment_rows();

}  // namespace tpu::lowering
