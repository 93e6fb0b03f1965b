#include <array>
#include <cstring>
#include <utility>

#include "pjrt/call.h"

namespace tpu::pjrt {
namespace {

std::span<const int64_t> dimensions(const PJRT_Api* api, PJRT_Buffer* buffer) {
  auto args = make_args<PJRT_Buffer_Dimensions_Args>();
  args.buffer = buffer;
  call<&PJRT_Api::PJRT_Buffer_Dimensions>(api, args);
  return {args.dims, args.num_dims};
}

bool is_on_cpu(const PJRT_Api* api, PJRT_Buffer* buffer) {
  if (!has_entry<&PJRT_Api::PJRT_Buffer_IsOnCpu>(api)) return false;
  auto args = make_args<PJRT_Buffer_IsOnCpu_Args>();
  args.buffer = buffer;
  call<&PJRT_Api::PJRT_Buffer_IsOnCpu>(api, args);
  return args.is_on_cpu;
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept : api_(other.api_), buffer_(std::exchange(other.buffer_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Buffer old(std::move(*this));  // released at the end of this scope
  api_ = other.api_;
  buffer_ = std::exchange(other.buffer_, nullptr);
  return *this;
}

Buffer::~Buffer() {
  if (buffer_ == nullptr) return;
  auto args = make_args<PJRT_Buffer_Destroy_Args>();
  args.buffer = buffer_;
  call_in_destructor<&PJRT_Api::PJRT_Buffer_Destroy>(api_, args);
}

PJRT_Buffer* Buffer::release() { return std::exchange(buffer_, nullptr); }

void Buffer::copy_to_host(void* destination, size_t bytes) const {
  ensure(valid(), "copy_to_host() of a buffer that holds nothing");
  // Host memory is read directly: the plugin's own copy hops through a thread, ten times the latency.
  if (is_on_cpu(api_, buffer_) && has_entry<&PJRT_Api::PJRT_Buffer_UnsafePointer>(api_) && on_device_bytes() == bytes) {
    ready_event().await();
    if (bytes > 0) std::memcpy(destination, unsafe_pointer(), bytes);
    return;
  }
  // Without a layout the plugin would copy in the device's own order of dimensions.
  const size_t rank = dimensions(api_, buffer_).size();
  Dims minor_to_major(rank, 0);
  for (size_t i = 0; i < rank; ++i) minor_to_major[i] = static_cast<int64_t>(rank - 1 - i);
  auto layout = make_args<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_kStructSize<PJRT_Buffer_MemoryLayout_Tiled>;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = rank;

  auto args = make_args<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = buffer_;
  args.host_layout = &layout;
  args.dst = destination;
  args.dst_size = bytes;
  call<&PJRT_Api::PJRT_Buffer_ToHostBuffer>(api_, args);
  Event(api_, args.event).await_to_the_end();  // it writes to the destination
}

void* Buffer::unsafe_pointer() const {
  ensure(valid(), "unsafe_pointer() of a buffer that holds nothing");
  auto args = make_args<PJRT_Buffer_UnsafePointer_Args>();
  args.buffer = buffer_;
  call<&PJRT_Api::PJRT_Buffer_UnsafePointer>(api_, args);
  return reinterpret_cast<void*>(args.buffer_pointer);
}

Event Buffer::ready_event() const {
  ensure(valid(), "ready_event() of a buffer that holds nothing");
  auto args = make_args<PJRT_Buffer_ReadyEvent_Args>();
  args.buffer = buffer_;
  call<&PJRT_Api::PJRT_Buffer_ReadyEvent>(api_, args);
  return Event(api_, args.event);
}

size_t Buffer::on_device_bytes() const {
  ensure(valid(), "on_device_bytes() of a buffer that holds nothing");
  auto args = make_args<PJRT_Buffer_OnDeviceSizeInBytes_Args>();
  args.buffer = buffer_;
  call<&PJRT_Api::PJRT_Buffer_OnDeviceSizeInBytes>(api_, args);
  return args.on_device_size_in_bytes;
}

bool Buffer::is_deleted() const {
  ensure(valid(), "is_deleted() of a buffer that holds nothing");
  auto args = make_args<PJRT_Buffer_IsDeleted_Args>();
  args.buffer = buffer_;
  call<&PJRT_Api::PJRT_Buffer_IsDeleted>(api_, args);
  return args.is_deleted;
}

Buffer Buffer::copy_to_device(const Device& device) const {
  ensure(valid(), "copy_to_device() of a buffer that holds nothing");
  auto args = make_args<PJRT_Buffer_CopyToDevice_Args>();
  args.buffer = buffer_;
  args.dst_device = device.raw();
  call<&PJRT_Api::PJRT_Buffer_CopyToDevice>(api_, args);
  return Buffer(api_, args.dst_buffer);
}

}  // namespace tpu::pjrt
