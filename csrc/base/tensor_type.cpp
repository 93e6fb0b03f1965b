#include "base/tensor_type.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tpu {

std::string to_string(const TensorType& type) {
  return std::string(torch_name(type.dtype)) + to_string(std::span<const int64_t>(type.dims));
}

int64_t bound_of(int64_t size) {
  constexpr int64_t kLeast = 16;  // the first few sizes share one program
  if (size <= 1) return size;
  return std::max(kLeast, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size))));
}

namespace {

// Calls `copy(offset in the smaller array, offset in the stored one, count)`, in elements, for each run.
template <typename Copy>
void for_each_run(const Dims& sizes, const Dims& stored, const Copy& copy) {
  if (product(sizes) == 0) return;
  // The last dims that are filled are one run with the dim before them.
  size_t outer = sizes.size();
  int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= sizes[outer];
    if (sizes[outer] != stored[outer]) break;
  }
  const Dims strides = contiguous_strides(sizes), stored_strides = contiguous_strides(stored);
  Dims index(outer, 0);
  for (;;) {
    int64_t from = 0, to = 0;
    for (size_t i = 0; i < outer; ++i) {
      from += index[i] * strides[i];
      to += index[i] * stored_strides[i];
    }
    copy(static_cast<size_t>(from), static_cast<size_t>(to), static_cast<size_t>(run));
    size_t i = outer;
    while (i > 0 && ++index[i - 1] == sizes[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

}  // namespace

void copy_from_stored(const TensorType& type, const Dims& stored, const void* from, void* to) {
  const size_t unit = byte_size(type.dtype);
  for_each_run(type.dims, stored, [&](size_t here, size_t there, size_t count) {
    std::memcpy(static_cast<char*>(to) + here * unit, static_cast<const char*>(from) + there * unit, count * unit);
  });
}

void copy_to_stored(const TensorType& type, const Dims& stored, const void* from, void* to) {
  const size_t unit = byte_size(type.dtype);
  for_each_run(type.dims, stored, [&](size_t here, size_t there, size_t count) {
    std::memcpy(static_cast<char*>(to) + there * unit, static_cast<const char*>(from) + here * unit, count * unit);
  });
}

}  // namespace tpu
