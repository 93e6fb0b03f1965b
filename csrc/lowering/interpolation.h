#pragma once
// The parts of the interpolation family; interpolation_rows() (table.h) concatenates them.

#include <span>

#include "lowering/table.h"

namespace tpu::lowering {

/// Sampling at the coordinates of a grid, with gradients.
std::span<const Row> grid_sampler_rows();

}  // namespace tpu::lowering
