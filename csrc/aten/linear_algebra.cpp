// Linear systems and determinants, composed of the LU rows: their results are factors of A, which PyTorch's
// gradient formulas use again. Least squares, composed of QR and singular values.

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_check_errors_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/linalg_lu_solve.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "aten/internal_ops.h"
#include "graph/capture.h"

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
  // Strides as on the CPU: columns one after the other, whichever dims they are.
  const at::Tensor result = vectors ? solved.squeeze(-1) : solved;
  return {vectors && result.dim() > 1 ? result.mT().contiguous().mT() : result, lu, pivots, info};
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

// ---- least squares

void check_least_squares(const at::Tensor& a, const at::Tensor& b, bool vectors, const std::string& driver) {
  TORCH_CHECK(a.dim() >= 2, "torch.linalg.lstsq: input must have at least 2 dimensions.");
  TORCH_CHECK(b.dim() >= 1, "torch.linalg.lstsq: other must have at least 1 dimension.");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype ",
              a.scalar_type(), " and other's dtype ", b.scalar_type());
  const int64_t more = a.dim() - b.dim();
  TORCH_CHECK(0 <= more && more <= 1,
              "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and "
              "(input.dim() - other.dim()) <= 1");
  TORCH_CHECK(a.size(-2) == b.size(vectors ? -1 : -2), "torch.linalg.lstsq: input.size(-2) should match other.size(",
              vectors ? "-1)" : "-2)");
  TORCH_CHECK(driver == "gels" || driver == "gelsy" || driver == "gelsd" || driver == "gelss",
              "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
}

struct LeastSquares {
  at::Tensor solution, projection;  // projection: B's part in the range of A
  at::Tensor rank, singular_values;
};

/// A is said to have full rank. Of a wide A the shortest solution is wanted. As in LAPACK, where A is zero (or has no
/// entries) so are solution and residuals.
LeastSquares solve_by_qr(const at::Tensor& a, const at::Tensor& b) {
  const bool wide = a.size(-2) < a.size(-1);
  const auto [q, r] = at::linalg_qr(wide ? a.mH() : a, "reduced");
  const at::Tensor vanishes = a.eq(0).all(-1).all(-1);
  const at::Tensor zero = r.diagonal(0, -2, -1).eq(0);
  if (zero.numel() > 0) {
    const at::Tensor places = at::arange(1, zero.size(-1) + 1, zero.options().dtype(at::kInt));
    const at::Tensor first = at::where(zero, places, zero.size(-1) + 1).amin(-1);
    const at::Tensor info = at::where(zero.any(-1).logical_and(vanishes.logical_not()), first, 0).to(at::kInt);
    at::_linalg_check_errors(info, "torch.linalg.lstsq", a.dim() == 2);
  }
  const at::Tensor none = vanishes.unsqueeze(-1).unsqueeze(-1);
  LeastSquares result;
  if (wide) {
    const at::Tensor coefficients = at::linalg_solve_triangular(r.mH(), b, /*upper=*/false);
    result.solution = at::where(none, 0, at::matmul(q, coefficients));
    return result;
  }
  const at::Tensor coefficients = at::matmul(q.mH(), b);
  result.solution = at::where(none, 0, at::linalg_solve_triangular(r, coefficients, /*upper=*/true));
  result.projection = at::where(none, b, at::matmul(q, coefficients));
  return result;
}

/// The shortest solution, with singular values up to `rcond` times the largest taken as zero.
LeastSquares solve_by_singular_values(const at::Tensor& a, const at::Tensor& b, double rcond) {
  const auto [u, s, vh] = at::_linalg_svd(a, /*full_matrices=*/false, /*compute_uv=*/true);
  const at::Tensor counts = s.gt(s.narrow(-1, 0, std::min<int64_t>(s.size(-1), 1)).mul(rcond));
  const at::Tensor inverse = at::where(counts, s.reciprocal(), 0);
  const at::Tensor coefficients = at::matmul(u.mH(), b);
  const at::Tensor scaled = coefficients.mul(inverse.unsqueeze(-1));
  return {at::matmul(vh.mH(), scaled), at::matmul(u, coefficients), counts.sum(-1), s};
}

/// Sums of squares of what no x can reach; empty where PyTorch gives none.
at::Tensor residuals_of(const LeastSquares& result, const at::Tensor& a, const at::Tensor& b, bool known) {
  const auto options = a.options().dtype(c10::toRealValueType(a.scalar_type()));
  if (!known || a.size(-2) <= a.size(-1)) return at::empty({0}, options);
  // Where a matrix of the batch is deficient nothing is given for the others either.
  if (result.rank.defined() && !result.rank.eq(a.size(-1)).all().item<bool>()) return at::empty({0}, options);
  return b.sub(result.projection).abs().square().sum(-2);
}

/// `solution` where LAPACK leaves it, column by column at the head of what held B: strides are then the CPU's.
at::Tensor placed_like_lapack(const at::Tensor& solution, int64_t rows) {
  std::vector<int64_t> sizes = solution.sizes().vec();
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  sizes.back() = std::max(rows, sizes.back());
  const at::Tensor place = at::empty(sizes, solution.options()).mT().narrow(-2, 0, solution.size(-2));
  return place.copy_(solution);
}

/// solution, residuals, rank, singular_values.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstsq(const at::Tensor& a, const at::Tensor& b,
                                                                 std::optional<double> rcond,
                                                                 std::optional<std::string_view> driver) {
  const std::string method(driver.value_or("gelsy"));
  const bool vectors = b.dim() >= 1 && a.dim() >= 2 && is_vector_case(a, b);
  check_least_squares(a, b, vectors, method);
  const at::Tensor columns = vectors ? b.unsqueeze(-1) : b;
  at::infer_size(a.sizes().slice(0, a.dim() - 2), columns.sizes().slice(0, columns.dim() - 2));
  const double epsilon = c10::toRealValueType(a.scalar_type()) == at::kFloat ? std::numeric_limits<float>::epsilon()
                                                                             : std::numeric_limits<double>::epsilon();
  const double most = rcond.value_or(epsilon * static_cast<double>(std::max(a.size(-2), a.size(-1))));
  LeastSquares result = method == "gels" ? solve_by_qr(a, columns) : solve_by_singular_values(a, columns, most);
  const at::Tensor residuals = residuals_of(result, a, columns, method != "gelsy");
  result.solution = placed_like_lapack(result.solution, a.size(-2));
  if (vectors) result.solution = result.solution.squeeze(-1);
  if (method == "gels") result.rank = at::empty({0}, a.options().dtype(at::kLong));
  if (method == "gels" || method == "gelsy") result.singular_values = at::empty({0}, residuals.options());
  return {result.solution, residuals, result.rank, result.singular_values};
}

// ---- errors

struct Failure {
  const char* function;  // part of its name
  const char* what;
};
// By the first that fits.
constexpr Failure kFailures[] = {
    {"inv", "the inversion could not be completed because the input matrix is singular"},
    {"solve", "the solver failed because the input matrix is singular"},
    {"cholesky", "the factorization could not be completed because the input is not positive-definite"},
    {"eig",
     "the algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
     "eigenvalues"},
    {"svd",
     "the algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
     "singular values"},
    {"lstsq", "the least squares solution could not be computed because the input matrix does not have full rank"},
    {"", "the factorization has a zero on its diagonal, so that solving with it would divide by zero"},
};

// What a captured graph finds out comes late and without numbers; otherwise PyTorch waits, and names the matrix.
void check_errors(const at::Tensor& info, c10::string_view function, bool is_matrix) {
  if (graph::Capture::current() == nullptr) {
    at::compositeexplicitautograd::_linalg_check_errors(info, function, is_matrix);
    return;
  }
  for (const Failure& failure : kFailures) {
    if (function.find(failure.function) == c10::string_view::npos) continue;
    checked_info(info, std::string(function) + ": " + failure.what);
    return;
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_linalg_solve_ex", &solve);
  m.impl("_linalg_det", &det);
  m.impl("_linalg_slogdet", &slogdet);
  m.impl("linalg_lstsq", &lstsq);
  m.impl("_linalg_check_errors", &check_errors);
}

}  // namespace
}  // namespace tpu::aten
