#pragma once
// Householder factorisations of [batch, rows, columns] values, in the packed form of LAPACK's ?GEQRF: R on and above
// the diagonal, below it the vectors of the reflections, whose leading ones are not stored.

#include "lowering/linear_algebra_matrix.h"

namespace tpu::lowering {

struct PackedQr {
  Value packed;  // [b, m, n]
  Value tau;     // [b, min(m, n)]
};

PackedQr factor_qr(Value x);

/// Q C or Q^H C for Q = H_1 H_2 ... H_k, whose vectors stand below the diagonal of `packed` [b, m, >= k] with factors
/// `tau` [b, k]. C is [b, m, c].
Value apply_reflections(Value packed, Value tau, Value c, bool adjoint);

}  // namespace tpu::lowering
