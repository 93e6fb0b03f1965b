#pragma once
// What the reduction, normalisation and sorting families share: `dim` arguments, wide accumulation,
// positions of extremes and scans along one axis. Pure functions; the builder belongs to the caller.

#include <functional>

#include "lowering/helpers.h"

namespace tpu::lowering {

/// Axes that a `dim` argument names: all when it is empty, none for a 0-d `x`; ascending.
Dims reduced_axes(Value x, const Dims& dim);

/// Product of the sizes of `axes`: how many elements of `x` make one result.
int64_t reduced_numel(Value x, const Dims& axes);

/// reduce_axes that also takes no axes at all (the value itself) and bool (max is or, min is and).
Value reduce_over(Value x, stablehlo::Reducer reducer, const Dims& axes, bool keep);

/// `x` as PyTorch accumulates it: converted to `dtype` first, then widened to compute_type(dtype).
Value accumulator_input(Value x, DType dtype);

/// Sum over `axes` in the type of `x`.
Value sum_over(Value x, const Dims& axes, bool keep);

/// Sum over `axes` divided by the number of elements; `x` has a compute type.
Value mean_over(Value x, const Dims& axes, bool keep);

/// A value reduced with keepdim, repeated along the reduced dims to `sizes`.
Value expand_kept(Value kept, const Dims& sizes);

/// 0, 1, 2, ... along `axis` with the sizes of `like`: int32 when the axis is short enough, else int64.
Value positions(Value like, int64_t axis);

/// Extreme of `x` along `axis` (kept as size 1) and the position where it first stands; NaN is more
/// extreme than any number. `x` must have rank 1 or more; a size of 0 gives unspecified positions.
struct Extreme {
  Value values;
  Value indices;  // as `positions`
};
Extreme extreme(Value x, stablehlo::Reducer reducer, int64_t axis);

/// Throws PyTorch's IndexError where `axis`, along which one of several elements is to be chosen, has none.
void require_elements(const OpCall& call, Value x, int64_t axis);

/// Inclusive scan along `axis` with an associative `combine(earlier, later)`, which gets and returns 0-d
/// values; `neutral` is 0-d with combine(neutral, x) == x.
using Combine = std::function<Value(Value earlier, Value later)>;
Value inclusive_scan(Value x, int64_t axis, Value neutral, const Combine& combine);

/// The window [start, limit) of `axis`, all of the other dims.
Value slice_axis(Value x, int64_t axis, int64_t start, int64_t limit);

}  // namespace tpu::lowering
