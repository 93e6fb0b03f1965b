#pragma once
// Copies between host and device and within the device. Copies copy: never an alias, whatever the plugin
// could do.

#include <ATen/core/Tensor.h>

namespace tpu::aten {

/// The tensor's elements in a new CPU tensor of the same sizes and dtype (conj and neg bits resolved).
at::Tensor to_host(const at::Tensor& tensor);
/// A new device tensor with a CPU tensor's elements, contiguous.
at::Tensor to_device(const at::Tensor& host, c10::DeviceIndex device);

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking);

}  // namespace tpu::aten
