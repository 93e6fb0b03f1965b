#pragma once
// Bindings of compile/captured_call.h: torch_tpu._C.GraphCapture and torch_tpu._C.CapturedCall.

#include <pybind11/pybind11.h>

namespace tpu::python {

void bind_capture(pybind11::module_& m);

}  // namespace tpu::python
