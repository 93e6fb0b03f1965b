// Filling tensors: constants, ranges, the identity. Factories reach us through their out= forms, so the
// result's sizes and dtype are those of the out tensor.

#include <cmath>

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {
namespace {

namespace hlo = stablehlo;
using Values = std::vector<Value>;

// ---- constants

// fill(self, value): self's elements are not read.
Values fill(const OpCall& call) {
  const TensorType& type = call.result_type();
  return {broadcast_to(call.operand(1, type.dtype), type.dims)};
}

Values zero(const OpCall& call) { return {call.builder().constant(int64_t{0}, call.result_type())}; }

// masked_fill(self, mask, value)
Values masked_fill(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (is_complex(call.dtype(2)) && !is_complex(type.dtype)) {
    const Value imaginary = hlo::imag(call.operand(2, call.dtype(2)));
    call.check(hlo::compare(imaginary, full_like(imaginary, 0), hlo::Compare::kNe), Code::kInvalidArgument,
               "value cannot be converted to type " + std::string(torch_name(type.dtype)) + " without overflow");
  }
  const auto operand = [&](size_t i, DType dtype) { return broadcast_to(call.operand(i, dtype), type.dims); };
  return {hlo::select(operand(1, DType::kBool), operand(2, type.dtype), operand(0, type.dtype))};
}

// ---- ranges

// True for a number that float64 and the narrow ranges below hold exactly.
std::optional<int64_t> small_integer(const std::optional<Scalar>& value) {
  constexpr double kLimit = 1 << 24;
  if (!value || value->kind == Scalar::Kind::kComplex) return std::nullopt;
  const double number = value->as_double();
  if (!(std::fabs(number) < kLimit) || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

Value iota_1d(Builder& builder, DType dtype, int64_t size) { return hlo::iota(builder, {dtype, {size}}, 0); }

// start + step * i for i < size, rounded once to the result's dtype.
Value progression(const OpCall& call, size_t start, size_t step) {
  const TensorType& type = call.result_type();
  const int64_t size = type.dims[0];
  Builder& builder = call.builder();
  const bool integral = is_integral_or_bool(type.dtype);
  DType dtype = integral ? DType::kS64 : DType::kF64;
  // Whole numbers below 2^24 are exact in 32 bits, which every device adds faster.
  const auto first = small_integer(call.known(start)), stride = small_integer(call.known(step));
  constexpr int64_t kLimit = 1 << 24;
  if (first && stride && size < kLimit && std::abs(*first + *stride * size) < kLimit) dtype = DType::kS32;
  // An integer range converts its bounds first, as PyTorch does: arange(0.5, 3, dtype=int64) starts at 0.
  const auto bound = [&](size_t i) {
    const Value value = integral ? call.operand(i, DType::kS64) : call.operand(i, DType::kF64);
    return broadcast_to(dtype == DType::kS32 ? scalar(builder, *small_integer(call.known(i)), dtype) : value, {size});
  };
  const Value index = iota_1d(builder, dtype, size);
  return convert_like_torch(hlo::add(bound(start), hlo::multiply(bound(step), index)), type.dtype);
}

// arange(start, end, step) and range(start, end, step)
Values arange(const OpCall& call) { return {progression(call, 0, 2)}; }

/// start + step * index in float64, rounded once, for whole 0 <= index < 2^27. PyTorch's kernels are compiled to a
/// fused multiply-add, and an integer range truncates: where the rounded step makes it fall just short of a whole
/// number, a product rounded by itself would give the next one. Here the product is exact in two parts, those of the
/// step's leading 24 bits and of the others, and Knuth's two-sum (TAOCP vol. 2, 4.2.2) keeps what the sum loses, so
/// that it makes no difference what a compiler fuses. Steps beyond float32's range are multiplied in one part.
Value fused_multiply_add(Value start, Value step, Value index) {
  const Value in_range = hlo::compare(hlo::abs(step), full_like(step, 1e38), hlo::Compare::kLt);
  const Value narrow = hlo::convert(hlo::convert(step, DType::kF32), DType::kF64);
  const Value leading = hlo::select(in_range, narrow, full_like(step, 0));
  const Value product = hlo::multiply(leading, index);
  const Value rest = hlo::multiply(hlo::subtract(step, leading), index);
  const Value sum = hlo::add(start, product);
  const Value start_in_sum = hlo::subtract(sum, product);
  const Value lost =
      hlo::add(hlo::subtract(start, start_in_sum), hlo::subtract(product, hlo::subtract(sum, start_in_sum)));
  return hlo::add(sum, hlo::add(lost, rest));
}

// `steps` numbers from start to end inclusive, from both ends towards the middle so that the last is exact.
// Computed in float64 for every dtype.
Value evenly_spaced(const OpCall& call) {
  const TensorType& type = call.result_type();
  const int64_t steps = type.dims[0];
  Builder& builder = call.builder();
  const TensorType wide{is_complex(type.dtype) ? DType::kC128 : DType::kF64, {steps}};
  const auto bound = [&](size_t i) {
    // Integer ranges truncate their bounds first.
    const Value value = is_integral_or_bool(type.dtype) ? convert_like_torch(call.operand(i, DType::kS64), wide.dtype)
                                                        : call.operand(i, wide.dtype);
    return broadcast_to(value, wide.dims);
  };
  const Value start = bound(0), end = bound(1);
  if (steps < 2) return start;
  const Value step = divide_exactly(hlo::subtract(end, start), builder.constant(steps - 1, wide));
  const Value index = iota_1d(builder, DType::kS64, steps);
  const Value last = builder.constant(steps - 1, index.type());
  const Value from_start = convert_like_torch(index, wide.dtype);
  const Value from_end = convert_like_torch(hlo::subtract(last, index), wide.dtype);
  const bool integral = is_integral_or_bool(type.dtype);
  const auto counted = [&](Value from, Value by, Value count) {
    return integral ? fused_multiply_add(from, by, count) : hlo::add(from, hlo::multiply(by, count));
  };
  const Value in_first_half = hlo::compare(index, builder.constant(steps / 2, index.type()), hlo::Compare::kLt);
  return hlo::select(in_first_half, counted(start, step, from_start), counted(end, hlo::negate(step), from_end));
}

Values linspace(const OpCall& call) { return {convert_like_torch(evenly_spaced(call), call.result_type().dtype)}; }

// logspace(start, end, steps, base)
Values logspace(const OpCall& call) {
  const Value exponent = evenly_spaced(call);
  const double base = call.real_or(3, 10.0);
  const Value power = hlo::power(call.builder().constant(base, exponent.type()), exponent);
  return {convert_like_torch(power, call.result_type().dtype)};
}

// ---- matrices

// eye(n) and eye.m(n, m)
Values eye(const OpCall& call) {
  const TensorType& type = call.result_type();
  const TensorType index{DType::kS32, type.dims};
  const Value rows = hlo::iota(call.builder(), index, 0), columns = hlo::iota(call.builder(), index, 1);
  return {convert_like_torch(hlo::compare(rows, columns, hlo::Compare::kEq), type.dtype)};
}

constexpr uint32_t kSelfUnread = 1;

constexpr Row kRows[] = {
    {.name = "fill.Scalar", .lower = fill, .unread_args = kSelfUnread},
    {.name = "fill.Tensor", .lower = fill, .unread_args = kSelfUnread},
    {.name = "zero", .lower = zero, .unread_args = kSelfUnread},
    {"masked_fill.Scalar", masked_fill},
    {"masked_fill.Tensor", masked_fill},
    {"arange.start_step", arange},
    {"range.step", arange},
    {"linspace", linspace},
    {"logspace", logspace},
    {"eye", eye},
    {"eye.m", eye},
};

}  // namespace

std::span<const Row> creation_rows() { return kRows; }

}  // namespace tpu::lowering
