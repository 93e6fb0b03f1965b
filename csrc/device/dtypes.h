#pragma once
// torch dtypes and the core's element types.

#include <c10/core/ScalarType.h>

#include "base/dtype.h"

namespace tpu::device {

/// Raises TypeError for a dtype that the device has no element type for.
DType to_dtype(c10::ScalarType type);
c10::ScalarType to_scalar_type(DType dtype);
bool supports(c10::ScalarType type);

}  // namespace tpu::device
