#pragma once
// The parts of the linear algebra family; linear_algebra_rows() (table.h) concatenates them.

#include <span>

#include "lowering/table.h"

namespace tpu::lowering {

/// Triangular solves, Cholesky and what follows from them.
std::span<const Row> linear_algebra_solve_rows();
/// Grouped matrix products.
std::span<const Row> linear_algebra_grouped_rows();

}  // namespace tpu::lowering
