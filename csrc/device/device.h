#pragma once
// The current device of a thread and facts about devices.

#include <c10/core/Device.h>

#include <cstddef>

namespace tpu::device {

c10::DeviceIndex current_device();
/// Raises RuntimeError when there is no such device.
void set_current_device(c10::DeviceIndex index);
/// Number of devices; 0 when there is no usable plugin.
c10::DeviceIndex device_count() noexcept;
/// `index`, or the current device for -1; raises when there is no such device.
c10::DeviceIndex resolve(c10::DeviceIndex index);
/// Bytes of memory of a device: its own figure, or the host's memory where the plugin runs on the host.
size_t total_memory(c10::DeviceIndex index);

}  // namespace tpu::device
