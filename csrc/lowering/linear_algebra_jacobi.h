#pragma once
// Jacobi's method in parallel: n / 2 disjoint pairs of rows are rotated at once, and n - 1 rounds of a tournament bring
// every pair together (Brent and Luk, The solution of singular-value and symmetric eigenvalue problems on
// multiprocessor arrays, 1985). Each round is a fixed number of elementwise operations, so programs are small and a
// sweep costs n rounds of n^2. The eigenvalue and singular value decompositions are built on this.

#include "lowering/linear_algebra_matrix.h"

namespace tpu::lowering {

/// Rows 0 .. h - 1 and h .. 2 h - 1 of a value [b, 2 h, ...]; row i of one meets row i of the other.
struct Halves {
  Value top;
  Value bottom;
};

/// `x` [b, n, ...] with a row of zeros added if n is odd.
Halves split_rows(Value x);
Value join_rows(const Halves& halves);
/// The next round: all rows (columns for axis 2) but the first move on by one seat. After 2 h - 1 rounds all are back.
Halves next_round(const Halves& halves, int64_t axis = 1);

/// Plane rotations x' = c x - conj(s) y, y' = s x + c y that make the Hermitian [[a, w], [conj(w), d]] of x and y
/// diagonal, by at most 45 degrees; all are [b, h]. They are applied as x - conj(s) (y + r x), y + s (x - conj(r) y)
/// with r = s / (1 + c): what is rotated a little is rounded a little, and lengths drift less over many rotations.
struct Rotations {
  Value sine;   // s, dtype of w
  Value ratio;  // r, dtype of w
  Value shift;  // real: the diagonal becomes a - shift, d + shift
};
/// Pairs where `active` (i1[b, h]) does not hold are left alone.
Rotations rotations_of(Value a, Value d, Value w, Value active);

/// Rows (columns for axis 2) of [b, ., .] values rotated.
Halves rotate(const Rotations& rotations, const Halves& halves, int64_t axis = 1);

/// Rows [b, n, n], orthonormal but for the errors of many rotations, made so to rounding: one step of Newton's
/// iteration for the unitary polar factor (Higham, Functions of Matrices, 8.3), (3 I - X X^H) X / 2.
Value orthonormal_rows(Value x);

/// Rows [b, n, ...] and their keys [b, n], keys ascending.
struct Sorted {
  Value keys;
  Value rows;
};
Sorted sort_rows(Value keys, Value rows);
Value sort_keys(Value keys);

/// Sweeps after which a matrix counts as one that does not converge; 6 to 12 are usual.
constexpr int64_t kMostSweeps = 40;

}  // namespace tpu::lowering
