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

/// "float32[2, 3]", the form used in messages.
std::string to_string(const TensorType& type);

}  // namespace tpu
