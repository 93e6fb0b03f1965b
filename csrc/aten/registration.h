#pragma once

#include "aten/dispatch.h"

namespace tpu::aten {

/// Registers the kernels of the row table with PyTorch's dispatcher. Called once, when the package loads.
void register_rows();

/// The row kernel of an overload ("index.Tensor") that is registered by hand: what its hand-written kernel
/// calls after preparing the arguments. REQUIRES: register_rows() has run and the table serves `name`.
RowKernel& row_kernel(const std::string& name);

}  // namespace tpu::aten
