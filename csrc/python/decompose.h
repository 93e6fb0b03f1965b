#pragma once
// Runs an operator by a Python decomposition: torch_tpu._internal.decompositions.lookup(name, overload).

#include <pybind11/pybind11.h>

namespace tpu::python {

void bind_decomposer(pybind11::module_& m);

}  // namespace tpu::python
