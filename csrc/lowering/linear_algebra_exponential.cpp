// Matrix exponential by scaling and squaring of the Taylor polynomial of degree 18 (Bader, Blanes and Casas,
// Computing the matrix exponential with an optimized Taylor polynomial approximation, 2019: the norms up to which the
// polynomial is exact to the dtype's precision are theirs, and PyTorch's).

#include <array>

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_loop.h"
#include "lowering/linear_algebra_matrix.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

constexpr int kDegree = 18;

/// Largest 1-norm for which the polynomial needs no scaling.
double norm_limit(DType dtype) { return real_type(dtype) == DType::kF32 ? 3.010066362817634 : 1.090863719290036; }

/// 2^-s for i32 `s` of 0 up to the exponent bias, exactly: the exponent's bits.
Value power_of_half(Value s, DType dtype) {
  const bool single = dtype == DType::kF32;
  const DType bits = single ? DType::kS32 : DType::kS64;
  const Value halved = convert(s, bits);
  const Value exponent = subtract(full_like(halved, single ? 127 : 1023), halved);
  return bitcast_convert(shift_left(exponent, full_like(exponent, single ? 23 : 52)), dtype);
}

/// Number of halvings that bring each matrix below the norm limit: i32[b]. 0 for what is not finite.
Value halvings(Value x) {
  const Value norm = reduce(reduce(abs(x), Reducer::kAdd, {1}), Reducer::kMaximum, {1});
  const Value excess = ceil(stablehlo::divide(log(stablehlo::divide(norm, full_like(norm, norm_limit(x.dtype())))),
                                              full_like(norm, 0.693147180559945309417)));
  const double most = norm.dtype() == DType::kF32 ? 126 : 1022;
  const Value counted = clamp(scalar(x.builder(), 0.0, norm.dtype()), excess, scalar(x.builder(), most, norm.dtype()));
  return convert(select(is_finite(norm), counted, full_like(norm, 0)), DType::kS32);
}

/// Sum of x^k / k! for k up to kDegree: powers up to the fourth, then Horner's scheme in the fourth power
/// (Paterson and Stockmeyer, 1973), seven products.
Value taylor(Value x) {
  std::array<double, kDegree + 1> coefficient{1.0};
  for (int k = 1; k <= kDegree; ++k) coefficient[k] = coefficient[k - 1] / k;
  const Value identity = identity_like(x), x2 = matrix_product(x, x);
  const Value x3 = matrix_product(x2, x), x4 = matrix_product(x2, x2);
  const Value powers[] = {identity, x, x2, x3};
  Value sum;
  for (int group = kDegree / 4; group >= 0; --group) {
    Value part = sum.defined() ? matrix_product(sum, x4) : full_like(x, 0);
    for (int k = std::min(3, kDegree - 4 * group); k >= 0; --k) {
      part = add(part, multiply(powers[k], full_like(x, coefficient[4 * group + k])));
    }
    sum = part;
  }
  return sum;
}

std::vector<Value> linalg_matrix_exp(const OpCall& call) {
  const Value x = convert(flatten_batch(call.tensor(0)), compute_type(call.dtype(0)));
  if (x.type().numel() == 0) return {to_result(call, 0, x)};
  const Value squarings = halvings(x);
  const Value factor = as_type(power_of_half(squarings, real_type(x.dtype())), x.dtype());
  const Value state[] = {taylor(multiply(x, broadcast_in_dim(factor, x.dims(), {0})))};
  const Value fixed[] = {squarings};
  const Value most = reduce(squarings, Reducer::kMaximum, {0});
  const Value last = counted_loop(most, state, fixed, [](Value i, auto carried, auto rest) {
    const Value unfinished = compare(broadcast_to(i, rest[0].dims()), rest[0], Compare::kLt);
    return std::vector<Value>{select_matrix(unfinished, matrix_product(carried[0], carried[0]), carried[0])};
  })[0];
  return {to_result(call, 0, last)};
}

const Row kRows[] = {
    {.name = "linalg_matrix_exp", .lower = linalg_matrix_exp, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_exponential_rows() { return kRows; }

}  // namespace tpu::lowering
