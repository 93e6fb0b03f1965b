#include "aten/argument_checks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"

namespace tpu::aten {
namespace {

using Arguments = at::ArrayRef<c10::IValue>;

/// Something per name, from lists of names with something for all of each.
template <typename Value, typename Entry, size_t count>
std::unordered_map<std::string, Value> by_name(const Entry (&entries)[count], Value Entry::* value) {
  std::unordered_map<std::string, Value> made;
  for (const Entry& entry : entries) {
    std::istringstream names(entry.operators);
    for (std::string name; names >> name;) made.emplace(name, entry.*value);
  }
  return made;
}

// ---- dtypes that there are kernels for -----------------------------------------------------------------------

enum class Accepts : uint8_t {
  kReal,               // all but complex
  kNumbers,            // all but complex and bool
  kNotBool,            // all but bool
  kFloating,           // no integers, bool and complex
  kFloatingOrComplex,  // no integers and bool
  kImages,             // floating and uint8
  kIntegers,           // no bool
  kBits,               // integers and bool
};

struct Rule {
  Accepts accepts;
  Code raises;  // kNotImplemented, or kInvalidArgument where PyTorch raises a RuntimeError
};

struct Family {
  Rule rule;
  const char* operators;  // of all overloads that have no entry of their own
};

// As the CPU has it, where CUDA has the same.
constexpr Family kFamilies[] = {
    {{Accepts::kReal, Code::kNotImplemented},
     "amax amin aminmax atan2 clamp clamp_max clamp_min copysign cummax cummin digamma erf erfc erfinv "
     "fractional_max_pool2d fractional_max_pool3d ge gt i0 le lgamma logit lt max min polygamma signbit "
     "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
     "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
     "special_chebyshev_polynomial_w special_entr special_erfcx special_hermite_polynomial_h "
     "special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l "
     "special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 "
     "special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
     "special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
     "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 "
     "special_xlog1py special_zeta xlogy"},
    {{Accepts::kReal, Code::kInvalidArgument},
     "deg2rad fmax fmin isneginf isposinf max.dim maximum min.dim minimum nansum rad2deg sort"},
    {{Accepts::kNumbers, Code::kNotImplemented},
     "avg_pool2d avg_pool3d bucketize ceil div.Scalar_mode div.Tensor_mode floor floor_divide fmod histc index_reduce "
     "kthvalue max_pool2d_with_indices max_pool3d_with_indices median nanmedian remainder round searchsorted threshold "
     "trunc"},
    {{Accepts::kNumbers, Code::kInvalidArgument}, "argmax argmin hardtanh relu topk"},
    {{Accepts::kNotBool, Code::kNotImplemented},
     "abs addbmm addcmul addmm addmv baddbmm convolution dot linalg_cross mv reflection_pad1d reflection_pad2d "
     "replication_pad1d replication_pad2d trace vdot"},
    {{Accepts::kNotBool, Code::kInvalidArgument}, "dist neg soft_margin_loss"},
    {{Accepts::kFloating, Code::kNotImplemented},
     "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d _batch_norm_with_update "
     "binary_cross_entropy binary_cross_entropy_with_logits _ctc_loss elu frac gelu glu grid_sampler_2d "
     "grid_sampler_3d hardshrink hardsigmoid hardswish huber_loss hypot igamma igammac leaky_relu log_sigmoid_forward "
     "_log_softmax _log_softmax_backward_data logaddexp2 max_unpool2d max_unpool3d mish mse_loss multi_margin_loss "
     "multilabel_margin_loss_forward native_batch_norm _native_batch_norm_legit native_group_norm native_layer_norm "
     "nextafter nll_loss2d_forward nll_loss_forward _prelu_kernel round.decimals rrelu_with_noise _safe_softmax "
     "segment_reduce smooth_l1_loss _softmax _softmax_backward_data softplus softshrink upsample_linear1d "
     "upsample_trilinear3d"},
    {{Accepts::kFloatingOrComplex, Code::kNotImplemented},
     "cholesky _linalg_eigh lerp logaddexp logcumsumexp normal renorm silu"},
    {{Accepts::kFloatingOrComplex, Code::kInvalidArgument},
     "cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_householder_product linalg_inv_ex "
     "linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr "
     "linalg_solve_triangular _linalg_svd ormqr std std_mean triangular_solve var var_mean"},
    {{Accepts::kImages, Code::kNotImplemented},
     "upsample_bicubic2d upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
     "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"},
    {{Accepts::kIntegers, Code::kNotImplemented}, "bitwise_left_shift bitwise_right_shift gcd lcm"},
    {{Accepts::kBits, Code::kNotImplemented}, "bitwise_and bitwise_not bitwise_or bitwise_xor"},
};

// Factorisations, which half types are too narrow for.
constexpr std::string_view kNotHalf =
    " cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig _linalg_eigh _linalg_eigvals "
    "linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex "
    "linalg_lu_solve linalg_qr linalg_solve_triangular _linalg_svd ormqr triangular_solve ";

bool is_accepted(c10::ScalarType dtype, Accepts accepts) {
  const bool is_bool = dtype == c10::kBool, is_integer = c10::isIntegralType(dtype, /*includeBool=*/false);
  const bool is_complex = c10::isComplexType(dtype), is_floating = !is_bool && !is_integer && !is_complex;
  switch (accepts) {
    case Accepts::kReal:
      return !is_complex;
    case Accepts::kNumbers:
      return !is_complex && !is_bool;
    case Accepts::kNotBool:
      return !is_bool;
    case Accepts::kFloating:
      return is_floating;
    case Accepts::kFloatingOrComplex:
      return is_floating || is_complex;
    case Accepts::kImages:
      return is_floating || dtype == c10::kByte;
    case Accepts::kIntegers:
      return is_integer;
    case Accepts::kBits:
      return is_integer || is_bool;
  }
  return true;
}

/// The overload's entry, else its operator's.
template <typename Table>
auto find(const Table& table, std::string_view row) {
  auto found = table.find(std::string(row));
  if (found == table.end()) found = table.find(std::string(row.substr(0, row.find('.'))));
  return found;
}

const std::unordered_map<std::string, Rule>& accepted_dtypes() {
  static const auto* const table = new auto(by_name(kFamilies, &Family::rule));
  return *table;
}

/// The dtype that the tensors are computed in; Undefined without any.
c10::ScalarType common_dtype(const Operator& op, Arguments arguments) {
  c10::ScalarType common = c10::ScalarType::Undefined;
  for (size_t i = 0; i < op.kinds.size(); ++i) {
    const std::string& name = op.handle.schema().arguments()[i].name();
    const bool is_place = name == "index" || name == "indices" || name == "sorter";
    if (op.kinds[i] != ArgKind::kTensor || arguments[i].isNone() || is_place) continue;
    const at::Tensor tensor = arguments[i].toTensor();
    if (!tensor.defined() || c10::isFloat8Type(tensor.scalar_type())) continue;
    // The targets of a loss may be classes.
    if (name == "target" && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) continue;
    common =
        common == c10::ScalarType::Undefined ? tensor.scalar_type() : c10::promoteTypes(common, tensor.scalar_type());
  }
  return common;
}

void check_not_half(const Operator& op, Arguments arguments) {
  if (kNotHalf.find(' ' + std::string(op.row->name) + ' ') == std::string_view::npos) return;
  const c10::ScalarType dtype = common_dtype(op, arguments);
  const bool half = dtype == c10::kHalf || dtype == c10::kBFloat16;
  TORCH_CHECK_NOT_IMPLEMENTED(!half, "\"", op.name, "\" not implemented for '", dtype, "'");
}

void check_accepted(const Operator& op, Arguments arguments, c10::ScalarType promoted) {
  check_not_half(op, arguments);
  const auto found = find(accepted_dtypes(), op.row->name);
  if (found == accepted_dtypes().end()) return;
  // Of an overload for a tensor and a number, both decide; what only takes floats has numbers as parameters.
  const Accepts accepts = found->second.accepts;
  const bool takes_floats = accepts == Accepts::kFloating || accepts == Accepts::kFloatingOrComplex;
  const bool of_number = !takes_floats && (op.row->name.find("Scalar") != std::string_view::npos ||
                                           op.row->name.find("scalar") != std::string_view::npos);
  const c10::ScalarType dtype = of_number ? promoted : common_dtype(op, arguments);
  if (dtype == c10::ScalarType::Undefined || is_accepted(dtype, accepts)) return;
  TORCH_CHECK(found->second.raises == Code::kNotImplemented, op.name, " does not support ", dtype, " inputs");
  TORCH_CHECK_NOT_IMPLEMENTED(false, "\"", op.name, "\" not implemented for '", dtype, "'");
}

// ---- dtypes that must be equal -------------------------------------------------------------------------------

/// By row, the numbers of the arguments whose dtypes must be that of the first of them; overloads with a dtype for the
/// result take others. PyTorch converts none of them: a product of float32 and bfloat16 is mostly a forgotten
/// conversion.
const std::unordered_map<std::string, std::vector<size_t>>& equal_dtypes() {
  static const auto* const table = new std::unordered_map<std::string, std::vector<size_t>>{
      {"addbmm", {0, 1, 2}},
      {"addmm", {0, 1, 2}},
      {"addmv", {0, 1, 2}},
      {"baddbmm", {0, 1, 2}},
      {"binary_cross_entropy", {0, 1}},
      {"bmm", {0, 1}},
      {"_cdist_forward", {0, 1}},
      {"convolution", {0, 1}},
      {"dot", {0, 1}},
      {"_embedding_bag", {0, 6}},
      {"_embedding_bag_forward_only", {0, 6}},
      {"grid_sampler_2d", {0, 1}},
      {"grid_sampler_3d", {0, 1}},
      {"heaviside", {0, 1}},
      {"index_add", {0, 3}},
      {"index_copy", {0, 3}},
      {"index_put", {0, 2}},
      {"index_reduce", {0, 3}},
      {"linalg_cross", {0, 1}},
      {"mm", {0, 1}},
      {"mv", {0, 1}},
      {"put_", {0, 2}},
      {"_unsafe_index_put", {0, 2}},
      {"vdot", {0, 1}},
  };
  return *table;
}

void check_equal_dtypes(const Operator& op, Arguments arguments) {
  const auto found = equal_dtypes().find(std::string(op.row->name));
  if (found == equal_dtypes().end()) return;
  const at::Tensor* first = nullptr;
  for (size_t i : found->second) {
    if (i >= arguments.size() || !arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (!tensor.defined()) continue;
    if (first == nullptr) first = &tensor;
    TORCH_CHECK(tensor.scalar_type() == first->scalar_type(), op.name, ": expected ",
                op.handle.schema().arguments()[found->second[0]].name(), " and ",
                op.handle.schema().arguments()[i].name(), " to have the same dtype, but got ", first->scalar_type(),
                " and ", tensor.scalar_type());
  }
}

bool is_given(const c10::IValue& argument) { return argument.isTensor() && argument.toTensor().defined(); }

/// Weights and statistics of a normalisation have the input's dtype, or are float32 beside an input of a half dtype.
void check_normalization(const Operator& op, Arguments arguments) {
  const c10::ScalarType input = arguments[0].toTensor().scalar_type();
  for (size_t i = 1; i < op.kinds.size(); ++i) {
    if (op.kinds[i] != ArgKind::kTensor || !is_given(arguments[i])) continue;
    const c10::ScalarType dtype = arguments[i].toTensor().scalar_type();
    const bool beside_half = dtype == c10::kFloat && c10::isReducedFloatingType(input);
    TORCH_CHECK(dtype == input || beside_half, op.name, ": expected input and ",
                op.handle.schema().arguments()[i].name(), " to have the same dtype, but got ", input, " and ", dtype);
  }
}

/// input, weight, bias, running_mean, running_var, ...
void check_batch_norm(const Operator& op, Arguments arguments) {
  TORCH_CHECK_VALUE(is_given(arguments[3]) == is_given(arguments[4]),
                    "running_mean and running_var must either both be None or neither be None");
  check_normalization(op, arguments);
}

// ---- sizes -----------------------------------------------------------------------------------------------------

void check_index_select(const Operator&, Arguments arguments) {
  const at::Tensor index = arguments[2].toTensor();
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector, got ", index.dim(), " dims");
  TORCH_CHECK(index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt,
              "index_select(): Expected dtype int32 or int64 for index, got ", index.scalar_type());
}

void check_index_fill(const Operator&, Arguments arguments) {
  const c10::ScalarType dtype = arguments[2].toTensor().scalar_type();
  TORCH_CHECK_INDEX(dtype == c10::kLong, "index_fill_(): Expected dtype int64 for index, got ", dtype);
}

/// self, dim, index, source, ...
void check_index_update(const Operator& op, Arguments arguments) {
  const at::Tensor self = arguments[0].toTensor(), index = arguments[2].toTensor(), source = arguments[3].toTensor();
  const c10::ScalarType dtype = index.scalar_type();
  TORCH_CHECK_INDEX(index.dim() <= 1, op.name, ": Index is supposed to be a vector, but got dim: ", index.dim());
  TORCH_CHECK(dtype == c10::kLong || dtype == c10::kInt, op.name,
              ": Expected dtype int32/int64 for index but got: ", dtype);
  bool fits = self.dim() == source.dim();
  const int64_t axis = at::maybe_wrap_dim(arguments[1].toInt(), self.dim());
  for (int64_t dim = 0; fits && dim < self.dim(); ++dim) fits = dim == axis || self.size(dim) == source.size(dim);
  TORCH_CHECK(fits, op.name, ": source tensor shape must match self tensor shape, excluding dim ", axis,
              ". Got self.shape = ", self.sizes(), " source.shape = ", source.sizes());
  const int64_t count = source.dim() == 0 ? 1 : source.size(axis);
  TORCH_CHECK_INDEX(index.numel() == count, op.name, ": Number of indices (", index.numel(),
                    ") should be equal to source.size(dim): (", count, ")");
}

void check_index_copy(const Operator&, Arguments arguments) {
  const c10::ScalarType dtype = arguments[2].toTensor().scalar_type();
  TORCH_CHECK(dtype == c10::kLong, "index_copy_(): Expected a long tensor for index, but got ", dtype);
}

/// input, output_size, ...
void check_upsample(const Operator& op, Arguments arguments) {
  const at::IntArrayRef input = arguments[0].toTensor().sizes();
  if (!arguments[1].isIntList()) return;
  const std::vector<int64_t> output = arguments[1].toIntVector();
  const auto has_none = [](at::IntArrayRef sizes) {
    return std::ranges::find_if(sizes, [](int64_t n) { return n <= 0; }) != sizes.end();
  };
  TORCH_CHECK(input.size() < 3 || (!has_none(input.slice(2)) && !has_none(output)), op.name,
              ": Input and output sizes should be greater than 0, but got input ", input, " and output ",
              at::IntArrayRef(output));
}

/// self, target, ...
void check_class_target(const Operator&, Arguments arguments) {
  const at::Tensor self = arguments[0].toTensor(), target = arguments[1].toTensor();
  TORCH_CHECK(target.scalar_type() == c10::kLong || target.scalar_type() == c10::kByte,
              "expected target dtype to be Long or Byte, but got ", target.scalar_type());
  if (self.dim() != 4 || target.dim() != 3) return;  // the meta kernel checks the others
  TORCH_CHECK(self.size(0) == target.size(0) && self.size(2) == target.size(1) && self.size(3) == target.size(2),
              "size mismatch (got input: ", self.sizes(), " , target: ", target.sizes());
}

/// self, kernel_size, dilation, padding, stride
void check_unfold(const Operator&, Arguments arguments) {
  const std::vector<int64_t> padding = arguments[3].toIntVector();
  TORCH_CHECK(std::ranges::all_of(padding, [](int64_t n) { return n >= 0; }),
              "padding should be non-negative, but got ", padding);
}

/// input, tau, other, left, transpose
void check_ormqr(const Operator&, Arguments arguments) {
  const at::Tensor input = arguments[0].toTensor(), tau = arguments[1].toTensor(), other = arguments[2].toTensor();
  const int64_t order = other.size(arguments[3].toBool() ? -2 : -1);
  TORCH_CHECK(tau.size(-1) <= input.size(-1),
              "torch.ormqr: tau.shape[-1] must be less than or equal to input.shape[-1]");
  TORCH_CHECK(tau.size(-1) == std::min(order, input.size(-1)),
              "torch.ormqr: tau.shape[-1] must be equal to min(other.shape[-2], input.shape[-1])");
}

/// sorted_sequence, ...
void check_searchsorted(const Operator&, Arguments arguments) {
  TORCH_CHECK(arguments[0].toTensor().dim() > 0,
              "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension");
}

void check_multinomial(const Operator&, Arguments arguments) {
  const c10::ScalarType dtype = arguments[0].toTensor().scalar_type();
  TORCH_CHECK(c10::isFloatingType(dtype), "multinomial only supports floating-point dtypes for input, got: ", dtype);
}

void check_put(const Operator&, Arguments arguments) {
  const at::Tensor index = arguments[1].toTensor(), source = arguments[2].toTensor();
  TORCH_CHECK(index.scalar_type() == c10::kLong, "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK_INDEX(index.numel() == source.numel(),
                    "put_(): Expected source and index to have the same number of elements, but got ", source.numel(),
                    " and ", index.numel());
}

/// stride, padding, dilation, transposed, output_padding
void check_output_padding(Arguments arguments) {
  const std::vector<int64_t> stride = arguments[3].toIntVector(), dilation = arguments[5].toIntVector();
  const std::vector<int64_t> padding = arguments[7].toIntVector();
  for (size_t i = 0; i < padding.size(); ++i) {
    const int64_t step = stride[std::min(i, stride.size() - 1)], spread = dilation[std::min(i, dilation.size() - 1)];
    TORCH_CHECK(padding[i] >= 0, "negative output_padding is not supported");
    TORCH_CHECK(padding[i] < step || padding[i] < spread,
                "output padding must be smaller than either stride or dilation, but got output_padding: ", padding,
                ", stride: ", stride, ", dilation: ", dilation);
  }
}

/// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
void check_convolution(const Operator&, Arguments arguments) {
  const at::Tensor input = arguments[0].toTensor(), weight = arguments[1].toTensor();
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  TORCH_CHECK(weight.size(0) >= groups, "Given groups=", groups, ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  for (int64_t dim = 2; dim < weight.dim(); ++dim) {
    TORCH_CHECK(weight.size(dim) > 0, "kernel size should be greater than zero, but got a weight of size ",
                weight.sizes());
    TORCH_CHECK(dim >= input.dim() || input.size(dim) > 0,
                "Only zero batch or zero channel inputs are supported, but got input shape: ", input.sizes());
  }
  if (transposed) check_output_padding(arguments);
  if (!is_given(arguments[2])) return;
  const at::Tensor bias = arguments[2].toTensor();
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == channels, "Given ", transposed ? "transposed=1, " : "",
              "weight of size ", weight.sizes(), ", expected bias to be 1-dimensional with ", channels,
              " elements, but got bias of size ", bias.sizes(), " instead");
  TORCH_CHECK(c10::canCast(bias.scalar_type(), input.scalar_type()), "result type ", bias.scalar_type(),
              " can't be cast to the desired output type ", input.scalar_type());
}

struct Check {
  const char* operators;
  void (*check)(const Operator&, Arguments);
};

constexpr Check kChecks[] = {
    {"native_batch_norm _native_batch_norm_legit _batch_norm_with_update", check_batch_norm},
    {"_native_batch_norm_legit.no_stats native_layer_norm native_group_norm", check_normalization},
    {"upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
     "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
     "_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
     check_upsample},
    {"convolution convolution_overrideable", check_convolution},
    {"im2col", check_unfold},
    {"index_add index_reduce", check_index_update},
    {"index_copy", check_index_copy},
    {"index_fill.int_Scalar index_fill.int_Tensor", check_index_fill},
    {"index_select", check_index_select},
    {"multinomial", check_multinomial},
    {"nll_loss_forward nll_loss2d_forward", check_class_target},
    {"ormqr", check_ormqr},
    {"put_", check_put},
    {"searchsorted.Tensor searchsorted.Scalar", check_searchsorted},
};

}  // namespace

void check_arguments(const Operator& op, Arguments arguments, c10::ScalarType promoted) {
  check_accepted(op, arguments, promoted);
  check_equal_dtypes(op, arguments);
  static const auto* const checks = new auto(by_name(kChecks, &Check::check));
  if (const auto found = checks->find(std::string(op.row->name)); found != checks->end()) found->second(op, arguments);
}

}  // namespace tpu::aten
