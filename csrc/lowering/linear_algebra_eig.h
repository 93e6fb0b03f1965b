#pragma once
// Schur form of general matrices, from which eigenvalues and eigenvectors follow (linear_algebra_eig.cpp).

#include "lowering/linear_algebra_matrix.h"

namespace tpu::lowering {

/// A = Z T Z^H. T [b, n, n] is upper triangular; of a real A quasi-triangular, with blocks of one or two rows on its
/// diagonal. Z is kept transposed, and undefined if not wanted.
struct Schur {
  Value t;
  Value z_transposed;
  Value linked;  // i1[b, n]: entry i tells whether rows i and i + 1 form a block
  Value failed;  // i1[b]
};
Schur schur_form(Value a, bool vectors);

/// Rows `first` (i32[b]) .. `first` + count - 1 of each [b, n, m] matrix, and the matrix with such rows replaced.
Value rows_at(Value x, Value first, int64_t count);
Value with_rows_at(Value x, Value first, Value rows);

}  // namespace tpu::lowering
