#pragma once

namespace tpu::aten {

/// Registers the kernels of the row table with PyTorch's dispatcher. Called once, when the package loads.
void register_rows();

}  // namespace tpu::aten
