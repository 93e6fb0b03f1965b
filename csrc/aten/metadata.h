#pragma once
// Result types of a call, from PyTorch's own meta kernels: run once per signature on meta tensors, so that
// sizes, strides, dtypes and error messages are PyTorch's.

#include "aten/signature.h"

namespace tpu::aten {

struct Metadata {
  std::vector<at::Tensor> results;  // meta tensors of the functional form; undefined where PyTorch gives none
  std::vector<at::Tensor> written;  // meta twins of the written tensors after the call (out= may be resized)
  c10::ScalarType promoted = c10::ScalarType::Undefined;
};

/// Raises what the meta kernel raises: wrong shapes, dtypes, ranges.
/// With `sizes`, of tensors that have those instead of their own: one entry per tensor on the device, in the order of
/// the arguments.
Metadata compute_metadata(const Operator& op, at::ArrayRef<c10::IValue> arguments, std::span<const Dims> sizes = {});

}  // namespace tpu::aten
