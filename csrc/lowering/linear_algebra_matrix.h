#pragma once
// What the dense factorisations share: parts of matrices, products at full precision, reflections. A "matrix" here
// is a value whose last two dims are rows and columns; factorisations work on [batch, rows, columns].

#include "lowering/helpers.h"

namespace tpu::lowering {

/// `x` with the imaginary part negated; `x` itself when real.
Value conjugate(Value x);
/// Last two dims exchanged.
Value transposed(Value x);
Value adjoint(Value x);

/// `batch` followed by `rows` and `columns`.
Dims matrix_dims(std::span<const int64_t> batch, int64_t rows, int64_t columns);
Dims batch_of(const Dims& dims);
int64_t rows_of(Value x);
int64_t columns_of(Value x);
/// [batch, rows, columns], the batch dims made one.
Value flatten_batch(Value x);

/// i32 row (axis 0) or column (axis 1) number of every entry of a matrix like `x`.
Value entry_index(Value x, int64_t axis);
/// Lower (row >= column + shift) or upper (row <= column - shift) part of `x`, zero elsewhere.
Value triangle(Value x, bool lower, int64_t shift = 0);
Value identity_like(Value x);
/// Identity of [batch, rows, columns], ones on the main diagonal.
Value identity_matrix(Builder& builder, DType dtype, int64_t batch, int64_t rows, int64_t columns);
/// Columns (axis 1) or rows (axis 0) `first` .. `limit` - 1 of a [b, m, n] value.
Value part_of(Value x, int64_t axis, int64_t first, int64_t limit);
/// [b, m, n] grown with zeros at the bottom and on the right.
Value grown(Value x, int64_t rows, int64_t columns);
/// Main diagonal of a [b, n, n] value: [b, n].
Value diagonal_of(Value x);

/// Rows `rows` [b, k] of `x` [b, n, m]: [b, k, m].
Value take_rows(Value x, Value rows);

/// Inverse of each permutation [b, n].
Value inverse_permutation(Value permutation);

/// triangular_solve that also takes empty operands.
Value solve_triangle(Value a, Value b, bool left, bool lower, bool unit,
                     stablehlo::Transpose op = stablehlo::Transpose::kNo);
/// Batched product [b, m, k] x [b, k, n] at the highest precision, whatever is allowed for the user's own products:
/// errors of a factorisation's products grow over its steps.
Value matrix_product(Value a, Value b);
/// Row vectors times matrices, [b, m] x [b, m, n], at the highest precision.
Value vector_product(Value row, Value matrix);

/// `x` as result `k`: its dtype and sizes.
Value to_result(const OpCall& call, size_t k, Value x);
/// Zeros as result `k`.
Value zero_result(const OpCall& call, size_t k);

/// Spacing of the numbers of `dtype` above 1 (of its parts when complex).
double epsilon_of(DType dtype);
/// Smallest positive normal number of `dtype` (of its parts when complex).
double smallest_normal(DType dtype);
/// Real `x` as `dtype`, which may be complex.
Value as_type(Value x, DType dtype);
/// Real part; `x` itself when real.
Value real_part(Value x);
/// |re| + |im|, LAPACK's cheap size of a complex number; |x| when real.
Value cheap_size(Value x);
/// |x|^2, real.
Value squared_size(Value x);
/// `x` [b, ...] where `flag` (i1[b]) holds, `other` elsewhere.
Value select_matrix(Value flag, Value x, Value other);

/// Numbers by which each matrix [b, m, n] must be multiplied, [b]: 1 for entries that can be squared and summed without
/// overflow or underflow, otherwise what brings the largest to 1.
Value safe_scale(Value x);

/// i1[b]: which matrices [b, m, n] hold infinities or NaN.
Value not_finite(Value x);

/// Raises, at the next synchronisation, when any entry of `bad` (i1) is true.
void check_none(const OpCall& call, Value bad, const std::string& message, Code code = Code::kLinearAlgebra);

/// Householder reflections H = I - tau v v^H with H^H x = beta e_1, one for each row of a [b, m] value, with the
/// conventions of LAPACK's ?LARFG: v_1 = 1, beta real with the sign opposite to that of the leading entry's real
/// part, and tau = 0 where x is a real multiple of e_1 already.
struct Reflection {
  Value vector;  // [b, m]: zero above the leading entry, one there
  Value tau;     // [b]
  Value beta;    // [b], dtype of x
};
/// The leading entry is number `first` (0-d i32) of each row; those before it are ignored.
Reflection reflection_of(Value x, Value first);

}  // namespace tpu::lowering
