#pragma once
// TensorType: element type and static sizes of one value in a program or one buffer on a device.

#include <string>

#include "base/dims.h"
#include "base/dtype.h"

namespace tpu {

struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;

  size_t rank() const { return dims.size(); }
  int64_t numel() const { return product(dims); }
  size_t bytes() const { return static_cast<size_t>(numel()) * byte_size(dtype); }

  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// An array whose sizes change between calls is stored in a larger one, so that one program serves many sizes: the
/// elements stand at the beginning of each dim, and what follows them there has no meaning.
struct Bounds {
  Dims stored;        // sizes of the array that holds it
  uint64_t dims = 0;  // bit per dim: its size may differ between calls, even if it fills the stored size now
};

/// The stored size of a dim that has `size` elements now: a power of two, so that all sizes up to n need about log2(n)
/// programs. Sizes 0 and 1 select code in PyTorch (empty results, broadcasting) and are kept.
int64_t bound_of(int64_t size);

/// Copies the elements of an array of `type` from a stored array of `stored` sizes, both row-major.
void copy_from_stored(const TensorType& type, const Dims& stored, const void* from, void* to);
/// The other way; what lies between is left as it is.
void copy_to_stored(const TensorType& type, const Dims& stored, const void* from, void* to);

/// "float32[2, 3]", the form used in messages.
std::string to_string(const TensorType& type);

}  // namespace tpu
