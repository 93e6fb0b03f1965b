#include "base/dims.h"

namespace tpu {

int64_t product(std::span<const int64_t> dims) {
  int64_t total = 1;
  for (int64_t d : dims) total *= d;
  return total;
}

Dims contiguous_strides(std::span<const int64_t> sizes) {
  Dims strides(sizes.size(), 1);
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

std::string to_string(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

Dims iota(size_t count) {
  Dims result(count, 0);
  for (size_t i = 0; i < count; ++i) result[i] = static_cast<int64_t>(i);
  return result;
}

}  // namespace tpu
