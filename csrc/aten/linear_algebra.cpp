// Linear systems and determinants, composed of the LU rows: their results are factors of A, which PyTorch's
// gradient formulas use again.

#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/linalg_lu_solve.h>
#include <torch/library.h>

namespace tpu::aten {
namespace {

/// Factors as the gradient of a determinant expects them: of A^T where A is contiguous and real.
std::tuple<at::Tensor, at::Tensor, at::Tensor> determinant_factors(const at::Tensor& a) {
  const bool transposed = a.is_contiguous() && !a.is_complex();
  return at::linalg_lu_factor_ex(transposed ? a.mT() : a, /*pivot=*/true, /*check_errors=*/false);
}

/// True where B holds one vector per matrix of A rather than a matrix.
bool is_vector_case(const at::Tensor& a, const at::Tensor& b) {
  return b.dim() == 1 || (a.dim() - 1 == b.dim() && b.sizes().equals(a.sizes().slice(0, a.dim() - 1)));
}

/// result, LU, pivots, info.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> solve(const at::Tensor& a, const at::Tensor& b, bool left,
                                                                 bool check_errors) {
  TORCH_CHECK(a.dim() >= 2 && a.size(-1) == a.size(-2), "linalg.solve: A must be batches of square matrices");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "linalg.solve: Expected A and B to have the same dtype, but found ",
              a.scalar_type(), " and ", b.scalar_type());
  const bool vectors = is_vector_case(a, b);
  TORCH_CHECK(left || !vectors,
              "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False.");
  auto [lu, pivots, info] = at::linalg_lu_factor_ex(a, /*pivot=*/true, check_errors);
  const at::Tensor solved = at::linalg_lu_solve(lu, pivots, vectors ? b.unsqueeze(-1) : b, left, /*adjoint=*/false);
  return {vectors ? solved.squeeze(-1) : solved, lu, pivots, info};
}

/// +1 or -1 per matrix: the sign of the permutation that pivots describe.
at::Tensor permutation_sign(const at::Tensor& pivots, at::ScalarType dtype) {
  const at::Tensor places = at::arange(1, pivots.size(-1) + 1, pivots.options());
  const at::Tensor swaps = pivots.ne(places).sum(-1);
  return swaps.remainder(2).mul(-2).add(1).to(dtype);
}

/// result, LU, pivots.
std::tuple<at::Tensor, at::Tensor, at::Tensor> det(const at::Tensor& a) {
  TORCH_CHECK(a.dim() >= 2 && a.size(-1) == a.size(-2), "linalg.det: A must be batches of square matrices");
  auto [lu, pivots, info] = determinant_factors(a);
  const at::Tensor diagonal = lu.diagonal(0, -2, -1);
  return {diagonal.prod(-1).mul(permutation_sign(pivots, diagonal.scalar_type())), lu, pivots};
}

/// sign, logabsdet, LU, pivots.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> slogdet(const at::Tensor& a) {
  TORCH_CHECK(a.dim() >= 2 && a.size(-1) == a.size(-2), "linalg.slogdet: A must be batches of square matrices");
  auto [lu, pivots, info] = determinant_factors(a);
  const at::Tensor diagonal = lu.diagonal(0, -2, -1);
  const at::Tensor sign = diagonal.sgn().prod(-1).mul(permutation_sign(pivots, diagonal.scalar_type()));
  return {sign, diagonal.abs().log().sum(-1), lu, pivots};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_linalg_solve_ex", &solve);
  m.impl("_linalg_det", &det);
  m.impl("_linalg_slogdet", &slogdet);
}

}  // namespace
}  // namespace tpu::aten
