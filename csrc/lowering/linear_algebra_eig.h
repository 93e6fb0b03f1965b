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

/// `count` rows (columns for axis 2) of each [b, ., .] matrix from `first` on, i32[b] or 0-d, and the matrix with such
/// rows replaced.
Value lines_at(Value x, Value first, int64_t count, int64_t axis);
Value with_lines_at(Value x, Value first, Value lines, int64_t axis);

/// H^H T H and (Z H)^T for a reflection of the few rows from `place` on, of which `rows` is what H^H makes. State and
/// result: T and, if wanted, Z^T.
std::vector<Value> similar(const Reflection& h, Value place, Value rows, std::span<const Value> state);
/// H^H times rows [b, p, m], few rows.
Value reflect_rows(const Reflection& h, Value rows);

/// Diagonal `offset` below the main one of [b, n, n], as [b, n]: entry j is that of column j, zero where there is none.
Value diagonal_below(Value a, int64_t offset);
/// Entry i of each row of [b, n] moved to i + 1; the first becomes zero.
Value shifted_down(Value x);

}  // namespace tpu::lowering
