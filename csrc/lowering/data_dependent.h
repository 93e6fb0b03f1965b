#pragma once
// Building blocks for operators whose result size depends on data (nonzero, masked_select, unique): the
// caller first asks for the count, then for that many positions with a static capacity.

#include "lowering/op_call.h"

namespace tpu::lowering {

/// Number of true elements of an i1 value of any rank; 0-d int64.
Value count_nonzero(Value mask);

/// Coordinates of the true elements of `mask` in row-major order: int64 [capacity, rank of mask]. Rows past the
/// count repeat the first, true elements past the capacity are left out. A 0-d mask gives [capacity, 0].
Value nonzero_padded(Value mask, int64_t capacity);

/// The same coordinates one after the other, [rank * capacity]: those of the first dim, as many as there are true
/// elements, then those of the next.
Value nonzero_columns(Value mask, int64_t capacity);

}  // namespace tpu::lowering
