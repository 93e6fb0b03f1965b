#include "base/tensor_type.h"

namespace tpu {

std::string to_string(const TensorType& type) {
  return std::string(torch_name(type.dtype)) + to_string(std::span<const int64_t>(type.dims));
}

}  // namespace tpu
