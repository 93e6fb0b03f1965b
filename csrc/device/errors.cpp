#include "device/errors.h"

#include <c10/util/Exception.h>

namespace tpu::device {

void raise(const Error& error) {
  const char* text = error.what();
  switch (error.code()) {
    case Code::kValue:
      TORCH_CHECK_VALUE(false, text);
    case Code::kIndex:
      TORCH_CHECK_INDEX(false, text);
    case Code::kType:
      TORCH_CHECK_TYPE(false, text);
    case Code::kNotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case Code::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case Code::kLinearAlgebra:
      TORCH_CHECK_WITH(LinAlgError, false, text);
    default:
      TORCH_CHECK(false, text);
  }
}

}  // namespace tpu::device
