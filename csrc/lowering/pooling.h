#pragma once
// Windows along one axis at a time: pooling over an n-dim window is n such passes, which costs the sum of the
// window's sides where a direct evaluation costs their product. Shared by pooling.cpp (fixed windows) and
// pooling_adaptive.cpp (windows that follow from the sizes).

#include <span>
#include <vector>

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {

/// The window of one axis: tap t of output o reads input o * stride - padding + t * dilation.
struct AxisWindow {
  size_t axis;
  int64_t size;  // input
  int64_t out;
  int64_t taps;
  int64_t stride;
  int64_t padding;
  int64_t dilation;
};

/// Values with the number (i32) of the entry of the input plane that each came from; -1 for padding.
struct Located {
  Value value;
  Value index;
};

/// Whether `candidate` replaces `best` as PyTorch's kernels scan a window in order: a larger value does, any
/// NaN does, and anything replaces padding.
Value replaces(const Located& candidate, const Located& best);
/// The better of two, whatever the order in which they are met: the first of equal values, the last of NaNs.
Located better(const Located& a, const Located& b);

/// i32 number of every entry within the plane that the last `spatial` dims form.
Value plane_index(Builder& builder, const Dims& sizes, size_t spatial);

/// `value` scattered into planes of zeros: x and `index` (row-major plane positions) are [..., *T], the result
/// [..., *S] with the last `spatial` dims in `sizes`. `accumulate` adds what meets, else one of them stays.
Value scatter_planes(Value x, Value index, const Dims& sizes, size_t spatial, bool accumulate);

/// Adaptive and fractional pooling, unpooling; pooling_rows() (table.h) includes them.
std::span<const Row> pooling_adaptive_rows();

}  // namespace tpu::lowering
