#pragma once
// StableHLO operations as free functions over Value (https://openxla.org/stablehlo/spec). Every function
// checks its operands and infers its result's type. Elementwise functions need operands of one type;
// broadcasting and promotion are the caller's work (lowering/helpers.h).

#include <optional>
#include <utility>

#include "stablehlo/builder.h"

namespace tpu::stablehlo {

// ---- elementwise, one operand
Value abs(Value x);  // complex -> real
Value cbrt(Value x);
Value ceil(Value x);
Value cosine(Value x);
Value count_leading_zeros(Value x);
Value exponential(Value x);
Value exponential_minus_one(Value x);
Value floor(Value x);
Value imag(Value x);
Value is_finite(Value x);  // -> i1
Value log(Value x);
Value log_plus_one(Value x);
Value logistic(Value x);
Value negate(Value x);
Value logical_not(Value x);  // stablehlo.not: bitwise for integers
Value popcnt(Value x);
Value real(Value x);
Value round_nearest_even(Value x);
Value round_nearest_afz(Value x);
Value rsqrt(Value x);
Value sign(Value x);
Value sine(Value x);
Value sqrt(Value x);
Value tan(Value x);
Value tanh(Value x);
Value convert(Value x, DType dtype);  // no-op when already of that type
/// Same bits, other element type; sizes follow the spec when widths differ (last dim added or removed).
Value bitcast_convert(Value x, DType dtype);
Value reduce_precision(Value x, int exponent_bits, int mantissa_bits);

// ---- elementwise, two operands of one type
Value add(Value a, Value b);  // logical or for i1
Value subtract(Value a, Value b);
Value multiply(Value a, Value b);
Value divide(Value a, Value b);
Value remainder(Value a, Value b);
Value maximum(Value a, Value b);
Value minimum(Value a, Value b);
Value power(Value a, Value b);
Value atan2(Value a, Value b);
Value bit_and(Value a, Value b);
Value bit_or(Value a, Value b);
Value bit_xor(Value a, Value b);
Value shift_left(Value a, Value b);
Value shift_right_arithmetic(Value a, Value b);
Value shift_right_logical(Value a, Value b);
Value complex(Value re, Value im);

enum class Compare { kEq, kNe, kLt, kLe, kGt, kGe };
/// IEEE comparison for floats (NaN compares unequal), signed/unsigned by type. `total_order` compares
/// floats as total order instead (for sort).
Value compare(Value a, Value b, Compare direction, bool total_order = false);

Value select(Value predicate, Value on_true, Value on_false);  // predicate: same dims, or 0-d
Value clamp(Value low, Value x, Value high);                   // bounds: x's type, or 0-d

// ---- shape
Value broadcast_in_dim(Value x, const Dims& sizes, const Dims& axes);
Value reshape(Value x, const Dims& sizes);   // no-op when sizes are equal
Value transpose(Value x, const Dims& axes);  // result dim i is x's dim axes[i]; no-op for identity
Value slice(Value x, const Dims& start, const Dims& limit, const Dims& step);
Value dynamic_slice(Value x, std::span<const Value> start, const Dims& sizes);
Value dynamic_update_slice(Value x, Value update, std::span<const Value> start);
Value concatenate(std::span<const Value> parts, int64_t axis);
Value pad(Value x, Value value, const Dims& low, const Dims& high, const Dims& interior);
Value reverse(Value x, const Dims& axes);
Value iota(Builder& builder, const TensorType& type, int64_t axis);

// ---- indexing (attributes as in the spec)
struct GatherDims {
  Dims offset_dims;
  Dims collapsed_slice_dims;
  Dims operand_batching_dims;
  Dims start_indices_batching_dims;
  Dims start_index_map;
  int64_t index_vector_dim = 0;
};
Value gather(Value x, Value indices, const GatherDims& dims, const Dims& slice_sizes, bool indices_are_sorted = false);

struct ScatterDims {
  Dims update_window_dims;
  Dims inserted_window_dims;
  Dims input_batching_dims;
  Dims scatter_indices_batching_dims;
  Dims scatter_dims_to_operand_dims;
  int64_t index_vector_dim = 0;
};
/// `combine` takes (old, update) as 0-d values and returns the new element.
Value scatter(Value x, Value indices, Value updates, const ScatterDims& dims, const Region& combine,
              bool indices_are_sorted = false, bool unique_indices = false);

// ---- reductions and windows
/// Variadic reduce: body takes (acc..., element...) as 0-d values and returns the new accumulators.
std::vector<Value> reduce(std::span<const Value> inputs, std::span<const Value> init, const Dims& axes,
                          const Region& body);
enum class Reducer { kAdd, kMultiply, kMaximum, kMinimum, kAnd, kOr };
/// Single-operand reduce with the neutral element of `reducer` as the initial value; axes are removed.
Value reduce(Value x, Reducer reducer, const Dims& axes);
/// 0-d neutral element: 0, 1, lowest (-inf), highest (+inf), all ones / true, 0 / false.
Value neutral(Builder& builder, Reducer reducer, DType dtype);

struct Window {
  Dims sizes;
  Dims strides;
  Dims base_dilations;
  Dims window_dilations;
  Dims pad_low;
  Dims pad_high;
};
std::vector<Value> reduce_window(std::span<const Value> inputs, std::span<const Value> init, const Window& window,
                                 const Region& body);
Value select_and_scatter(Value x, Value source, Value init, const Window& window, const Region& select_body,
                         const Region& scatter_body);
/// Sorts along `axis`; `less` takes (a0, b0, a1, b1, ...) and returns i1.
std::vector<Value> sort(std::span<const Value> inputs, int64_t axis, bool stable, const Region& less);

// ---- linear algebra
struct DotDims {
  Dims lhs_batch, rhs_batch, lhs_contract, rhs_contract;
};
/// `result` is the accumulation/result element type. Precision follows the builder's setting (DEFAULT,
/// HIGH, HIGHEST): see set_dot_precision.
Value dot_general(Value a, Value b, const DotDims& dims, DType result);

struct ConvolutionDims {
  // Positions in each operand; spatial lists have one entry per spatial dim.
  int64_t input_batch = 0, input_feature = 1;
  Dims input_spatial;
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  Dims kernel_spatial;
  int64_t output_batch = 0, output_feature = 1;
  Dims output_spatial;
};
struct ConvolutionWindow {
  Dims strides, pad_low, pad_high, lhs_dilation, rhs_dilation;
  std::vector<bool> reversal;  // empty: none
};
Value convolution(Value input, Value kernel, const ConvolutionDims& dims, const ConvolutionWindow& window,
                  int64_t feature_group_count, int64_t batch_group_count, DType result);

Value cholesky(Value x, bool lower);
enum class Transpose { kNo, kTranspose, kAdjoint };
Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal, Transpose transpose_a);
enum class FftKind { kFft, kIfft, kRfft, kIrfft };
Value fft(Value x, FftKind kind, const Dims& length);

// ---- control flow
/// `condition` and `body` take the loop-carried values.
std::vector<Value> while_loop(std::span<const Value> init, const Region& condition, const Region& body);
/// Branches take no arguments and may use outer values.
std::vector<Value> if_else(Value predicate, const Region& on_true, const Region& on_false,
                           std::span<const TensorType> results);
std::vector<Value> case_of(Value index, std::span<const Region> branches, std::span<const TensorType> results);

/// Keeps the compiler from fusing across: one result per operand.
std::vector<Value> optimization_barrier(std::span<const Value> values);

// ---- special functions: CHLO operations that every plugin's front end expands, mended where that is off
Value erf(Value x);
Value erfc(Value x);
Value erf_inv(Value x);
Value lgamma(Value x);
Value digamma(Value x);
/// The `k` greatest elements of the last dim in descending order, and their int32 positions; ties by
/// position. Floats compare as total order.
std::vector<Value> top_k(Value x, int64_t k);

}  // namespace tpu::stablehlo
