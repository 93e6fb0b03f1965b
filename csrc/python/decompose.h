#pragma once
// Runs an operator by a Python decomposition: torch_tpu._internal.decompositions.lookup(name, overload).

namespace tpu::python {

void install_decomposer();

}  // namespace tpu::python
