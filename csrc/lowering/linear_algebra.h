#pragma once
// The parts of the linear algebra family; linear_algebra_rows() (table.h) concatenates them.

#include <span>

#include "lowering/table.h"

namespace tpu::lowering {

/// Triangular solves, Cholesky and what follows from them.
std::span<const Row> linear_algebra_solve_rows();
/// QR factorisations.
std::span<const Row> linear_algebra_qr_rows();
/// Matrix exponential.
std::span<const Row> linear_algebra_exponential_rows();
/// Eigenvalues of Hermitian matrices.
std::span<const Row> linear_algebra_eigh_rows();
/// Singular values.
std::span<const Row> linear_algebra_svd_rows();
/// Eigenvalues of general matrices.
std::span<const Row> linear_algebra_eig_rows();
/// LDL factorisations.
std::span<const Row> linear_algebra_ldl_rows();
/// Grouped matrix products.
std::span<const Row> linear_algebra_grouped_rows();

}  // namespace tpu::lowering
