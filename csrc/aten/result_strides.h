#pragma once
// Strides of results. PyTorch's meta kernels know those of the CPU and of CUDA, and take a meta tensor for one of
// CUDA's. The device's are the CPU's, and those that fake tensors of the device have in tracing.

#include <vector>

#include "aten/operator.h"

namespace tpu::aten {

/// The dims of a tensor, those with the largest strides first; equal ones in their order.
Dims outermost_first(at::IntArrayRef strides);

/// Strides of a tensor without gaps whose dims lie in memory in this order, outermost first.
Dims dense_strides(at::IntArrayRef sizes, const Dims& order);

/// Gives what a meta kernel made of these arguments, meta tensors or not, the device's strides.
void set_result_strides(const Operator& op, at::ArrayRef<c10::IValue> arguments, std::vector<at::Tensor>& results);

}  // namespace tpu::aten
