#pragma once
// What PyTorch's kernels for the CPU and for CUDA check of their arguments, and its meta kernels leave to them: dtypes
// that an operator has no kernel for, dtypes that must be equal, and a few sizes. Looked at when a call is planned, so
// once for a signature.

#include <ATen/core/ivalue.h>

#include "aten/operator.h"

namespace tpu::aten {

/// Raises what PyTorch raises: NotImplementedError where there is no kernel for the dtype, else RuntimeError, or
/// IndexError from the operators that raise it. `arguments` are those of the row, `promoted` the dtype that they are
/// promoted to, numbers included.
void check_arguments(const Operator& op, at::ArrayRef<c10::IValue> arguments, c10::ScalarType promoted);

}  // namespace tpu::aten
