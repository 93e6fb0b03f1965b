// Matrix and vector products: mm, bmm, addmm and their relatives. Factorisations and triangular solves are
// in linear_algebra_solve.cpp, grouped products of mixture-of-experts layers in linear_algebra_grouped.cpp.
//
// Narrow floats multiply in their own type but accumulate in float32 and round once, after the scale and
// the added term; integers stay exact modulo their width, as on the CPU.

#include "lowering/linear_algebra.h"

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Dtype in which a product of `dtype` operands is accumulated and scaled.
DType accumulation_type(const OpCall& call, DType dtype) {
  if (dtype == DType::kBool) {
    throw Error(Code::kNotImplemented, std::string(call.name()) + ": matrix products of bool are not supported");
  }
  return compute_type(dtype);
}

/// dot_general spelled as products and their sum.
Value sum_of_products(Value a, Value b, const DotDims& dims) {
  Dims sizes;
  const auto new_axis = [&](int64_t size) {
    sizes.push_back(size);
    return static_cast<int64_t>(sizes.size()) - 1;
  };
  Dims of_a(a.rank(), -1), of_b(b.rank(), -1);  // axis of each operand dim among all
  const auto pair_up = [&](const Dims& in_a, const Dims& in_b) {
    for (size_t i = 0; i < in_a.size(); ++i) of_a[in_a[i]] = of_b[in_b[i]] = new_axis(a.dim(in_a[i]));
  };
  pair_up(dims.lhs_contract, dims.rhs_contract);
  const Dims summed = tpu::iota(sizes.size());
  pair_up(dims.lhs_batch, dims.rhs_batch);
  for (size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i] < 0) of_a[i] = new_axis(a.dim(i));
  }
  for (size_t i = 0; i < of_b.size(); ++i) {
    if (of_b[i] < 0) of_b[i] = new_axis(b.dim(i));
  }
  const Value products = multiply(broadcast_in_dim(a, sizes, of_a), broadcast_in_dim(b, sizes, of_b));
  return reduce(products, Reducer::kAdd, summed);
}

Value round_to_result(const OpCall& call, Value x) { return convert_like_torch(x, call.result_type().dtype); }

/// `x` times scalar argument `i`; free when the value is known to be 1.
Value scaled(const OpCall& call, size_t i, Value x) {
  if (const auto factor = call.known(i); factor && factor->as_complex() == 1.0) return x;
  return multiply(x, broadcast_to(call.operand(i, x.dtype()), x.dims()));
}

/// For scale_and_add: the product has its scale already.
constexpr size_t kNoScale = SIZE_MAX;

/// beta * self + alpha * product in the product's dtype. A beta of 0 ignores self, NaN included.
Value scale_and_add(const OpCall& call, size_t self, size_t beta, size_t alpha, Value product) {
  const Value result = alpha == kNoScale ? product : scaled(call, alpha, product);
  const auto known_beta = call.known(beta);
  if (known_beta && known_beta->as_complex() == 0.0) return result;
  const Value added = broadcast_to(call.operand(self, product.dtype()), product.dims());
  if (known_beta) return add(result, scaled(call, beta, added));
  const Value factor = call.operand(beta, product.dtype());
  const Value zero = full_like(factor, 0);
  const Value term = multiply(added, broadcast_to(factor, added.dims()));
  return add(result, select(compare(factor, zero, Compare::kEq), full_like(term, 0), term));
}

const DotDims kMatrix{{}, {}, {1}, {0}};
const DotDims kBatch{{0}, {0}, {2}, {1}};
const DotDims kMatrixVector{{}, {}, {1}, {0}};
const DotDims kInner{{}, {}, {0}, {0}};
const DotDims kSumOfBatch{{}, {}, {0, 2}, {0, 1}};

/// x @ weight.t() with few rows in x, as (weight @ x.t()).t(): the layer of a model that generates token by token.
/// XLA:CPU walks along the rows of its left operand quickly, but down the columns of a transposed right one 7 times
/// slower (one row), 2 times (eight rows). Not for narrow floats: XLA:CPU has no bfloat16 kernel of this form.
std::optional<Value> few_rows_times_transposed(Value a, Value b, const DotDims& dims, DType dtype) {
  constexpr int64_t kFewRows = 8;
  const bool batch = &dims == &kBatch;
  if (a.dtype() != dtype || (&dims != &kMatrix && !batch) || a.dim(batch ? 1 : 0) > kFewRows) return std::nullopt;
  const auto* from = b.builder().find_origin(b, stablehlo::Builder::Origin::Op::kTranspose);
  const Dims swap = batch ? Dims{0, 2, 1} : Dims{1, 0};
  if (from == nullptr || !(from->axes == swap)) return std::nullopt;
  const DotDims along_rows = batch ? DotDims{{0}, {0}, {2}, {2}} : DotDims{{}, {}, {1}, {1}};
  return transpose(dot_general(from->operand, a, along_rows, dtype), swap);
}

/// The product in its accumulation type. The TPU compiler has no matrix product of 64-bit integers.
Value product_of(const OpCall& call, Value a, Value b, const DotDims& dims) {
  const DType dtype = accumulation_type(call, a.dtype());
  if (a.dtype() == DType::kS64 || a.dtype() == DType::kU64) return sum_of_products(a, b, dims);
  if (const auto product = few_rows_times_transposed(a, b, dims, dtype)) return *product;
  return dot_general(a, b, dims, dtype);
}

template <const DotDims& dims>
std::vector<Value> multiply_two(const OpCall& call) {
  return {round_to_result(call, product_of(call, call.tensor(0), call.tensor(1), dims))};
}

/// self, a, b, beta, alpha in schema order.
template <const DotDims& dims>
std::vector<Value> multiply_and_add(const OpCall& call) {
  const Value product = product_of(call, call.tensor(1), call.tensor(2), dims);
  return {round_to_result(call, scale_and_add(call, 0, 3, 4, product))};
}

/// self, a, b, out_dtype, beta, alpha: accumulates and returns in a wider type.
template <const DotDims& dims>
std::vector<Value> multiply_and_add_wide(const OpCall& call) {
  const Value product = product_of(call, call.tensor(1), call.tensor(2), dims);
  return {round_to_result(call, scale_and_add(call, 0, 4, 5, product))};
}

std::vector<Value> vdot(const OpCall& call) {
  Value a = call.tensor(0);
  if (is_complex(a.dtype())) a = complex(real(a), negate(imag(a)));
  return {round_to_result(call, product_of(call, a, call.tensor(1), kInner))};
}

/// Operands of int8 multiply into int32.
std::vector<Value> int_mm(const OpCall& call) {
  return {dot_general(call.tensor(0), call.tensor(1), kMatrix, call.result_type().dtype)};
}

/// 0-d `x != 0`.
Value is_true(Value x) { return convert_like_torch(x, DType::kBool); }

/// Rounds after every step in narrow floats, which is what the CPU kernel does.
std::vector<Value> addr(const OpCall& call) {
  const TensorType& type = call.result_type();
  const DType dtype = type.dtype;
  const Dims& sizes = type.dims;
  const Value column = broadcast_in_dim(call.operand(1, dtype), sizes, {0});
  const Value row = broadcast_in_dim(call.operand(2, dtype), sizes, {1});
  if (dtype != DType::kBool) {
    const Value outer = multiply(scaled(call, 4, column), row);
    return {scale_and_add(call, 0, 3, kNoScale, outer)};
  }
  const Value outer = bit_and(column, row);
  const Value self = broadcast_to(call.operand(0, dtype), sizes);
  const Value beta = broadcast_to(is_true(call.operand(3, dtype)), sizes);
  const Value alpha = broadcast_to(is_true(call.operand(4, dtype)), sizes);
  return {bit_or(bit_and(beta, self), bit_and(alpha, outer))};
}

/// Exact (erf) GELU, the form that the CPU kernel of _addmm_activation uses.
Value gelu(Value x) {
  const Value scaled_error = erf(multiply(x, full_like(x, 0.70710678118654752440)));
  return multiply(multiply(x, full_like(x, 0.5)), add(scaled_error, full_like(x, 1)));
}

std::vector<Value> addmm_activation(const OpCall& call) {
  const Value product = product_of(call, call.tensor(1), call.tensor(2), kMatrix);
  const Value sum = scale_and_add(call, 0, 3, 4, product);
  if (call.boolean(5)) return {round_to_result(call, gelu(sum))};
  return {round_to_result(call, maximum(sum, full_like(sum, 0)))};
}

const Row kProductRows[] = {
    {.name = "mm", .lower = multiply_two<kMatrix>, .heavy = true},
    {.name = "mm.dtype", .lower = multiply_two<kMatrix>, .heavy = true},
    {.name = "bmm", .lower = multiply_two<kBatch>, .heavy = true},
    {.name = "bmm.dtype", .lower = multiply_two<kBatch>, .heavy = true},
    {.name = "mv", .lower = multiply_two<kMatrixVector>, .heavy = true},
    {.name = "dot", .lower = multiply_two<kInner>, .heavy = true},
    {.name = "vdot", .lower = vdot, .heavy = true},
    {.name = "addmm", .lower = multiply_and_add<kMatrix>, .heavy = true},
    {.name = "addmm.dtype", .lower = multiply_and_add_wide<kMatrix>, .heavy = true},
    {.name = "baddbmm", .lower = multiply_and_add<kBatch>, .heavy = true},
    {.name = "baddbmm.dtype", .lower = multiply_and_add_wide<kBatch>, .heavy = true},
    {.name = "addmv", .lower = multiply_and_add<kMatrixVector>, .heavy = true},
    {.name = "addbmm", .lower = multiply_and_add<kSumOfBatch>, .heavy = true},
    {.name = "addr", .lower = addr},
    {.name = "_addmm_activation", .lower = addmm_activation, .heavy = true},
    {.name = "_int_mm", .lower = int_mm, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kProductRows), std::end(kProductRows));
    for (const auto part : {linear_algebra_solve_rows(), linear_algebra_grouped_rows(), linear_algebra_qr_rows(),
                            linear_algebra_exponential_rows(), linear_algebra_eigh_rows(), linear_algebra_svd_rows(),
                            linear_algebra_eig_rows(), linear_algebra_ldl_rows()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
