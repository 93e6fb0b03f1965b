#pragma once
// Which sizes change from call to call. A program is compiled for the sizes of its arguments; where a line of the
// user's goes on making new ones, a sequence that grows or batches of many lengths, tensors are stored in larger arrays
// (base/tensor_type.h, Bounds), and programs are made for those.
//
// What is watched are the places where sizes come into being: new tensors, joined ones, parts of larger ones. From
// there changing sizes are handed on from tensor to tensor. A size is taken to change once a line has made
// kDistinctSizes tensors that differ in it alone, while those before them are gone: the layers of a model differ as
// well, but live on.

#include <ATen/core/Tensor.h>

#include <string>

#include "base/location.h"

namespace tpu::aten {

/// TORCH_TPU_BOUNDED_SIZES: kAlways treats all sizes as changing, and overwrites what stands behind them; for tests.
enum class BoundedSizes : uint8_t { kOff, kAuto, kAlways };
BoundedSizes bounded_sizes();
void set_bounded_sizes(BoundedSizes setting);               // forgets what was seen so far
BoundedSizes parse_bounded_sizes(const std::string& text);  // throws Error{kValue}
std::string to_string(BoundedSizes setting);

/// While one lives on a thread, none of its sizes is taken to change: for programs whose sizes others count on.
class FixedSizes {
 public:
  FixedSizes();
  ~FixedSizes();
  FixedSizes(const FixedSizes&) = delete;
  FixedSizes& operator=(const FixedSizes&) = delete;
};

/// So many sizes are served exactly before they are taken to change.
constexpr size_t kDistinctSizes = 4;

/// A place in the user's program, for one kind of thing made there.
uint64_t size_site(const Location& location, uint64_t kind);

/// Bit per dim that changes at `site`, of a tensor of `sizes` that is about to be made there.
uint64_t changing_dims(uint64_t site, c10::IntArrayRef sizes);
/// Tells which storage that was; without, it counts as gone.
void made_at(uint64_t site, const at::Tensor& tensor);

/// Sizes that dims which change had lately; within a capture, those that they have in it. A dim that is only expanded
/// to one of them, as the gradient of a mean is, most likely changes with it.
void changed_to(int64_t size);
/// What dims of this size are stored in, or 0 if none was known to change.
int64_t changing_bound(int64_t size);
inline bool was_changed_to(int64_t size) { return changing_bound(size) != 0; }
/// What a dim that changes is stored in.
int64_t stored_size(int64_t size);

}  // namespace tpu::aten
