#pragma once
// A tpu tensor's storage: an ordinary c10::StorageImpl whose DataPtr has a unique unreadable address and, as
// its context, the StorageSlot with the current value. The allocator and the engine make them here.

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "runtime/storage_slot.h"

namespace tpu::device {

/// New storage of `bytes` bytes on `device`, holding `value`.
c10::Storage make_storage(runtime::ValueRef value, size_t bytes, c10::DeviceIndex device);
/// Undefined value of `type`: reads as zeros.
runtime::ValueRef undefined_value(TensorType type, c10::DeviceIndex device,
                                  std::unique_ptr<const Bounds> bounds = nullptr);

runtime::StorageSlot& slot_of(const c10::StorageImpl& storage);
inline runtime::StorageSlot& slot_of(const at::TensorBase& tensor) {
  return slot_of(*tensor.storage().unsafeGetStorageImpl());
}

/// A tensor with a storage of its own that holds `value`.
at::Tensor make_tensor(runtime::ValueRef value, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device);

/// Same, of `bytes` bytes, with no value yet: the caller stores one in its slot before anyone sees it.
at::Tensor make_tensor(size_t bytes, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device);

/// Dims of a dense tensor in memory order: `order[i]` is the tensor dim that is base dim i. nullopt when the
/// strides leave gaps or overlap.
std::optional<Dims> memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides);

/// Changes the size of a storage to `bytes`; contents are kept up to the smaller size.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace tpu::device
