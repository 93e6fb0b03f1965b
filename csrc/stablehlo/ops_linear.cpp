// Contractions, convolution, factorisations and Fourier transforms.

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

bool contains(const Dims& list, size_t axis) {
  return std::find(list.begin(), list.end(), static_cast<int64_t>(axis)) != list.end();
}

// One side of the dimension numbers of a convolution: "[b, f, 0, 1]".
std::string layout(size_t rank, int64_t first, const char* first_name, int64_t second, const char* second_name,
                   const Dims& spatial, const char* op, std::span<const Value> operands) {
  check(rank == spatial.size() + 2, op, "rank differs from the number of spatial dims + 2", operands);
  std::vector<std::string> names(rank);
  const auto place = [&](int64_t at, std::string name) {
    const bool free = at >= 0 && at < static_cast<int64_t>(rank) && names[static_cast<size_t>(at)].empty();
    check(free, op, "dimension numbers are not a permutation", operands);
    names[static_cast<size_t>(at)] = std::move(name);
  };
  place(first, first_name);
  place(second, second_name);
  for (size_t i = 0; i < spatial.size(); ++i) place(spatial[i], std::to_string(i));
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i != 0) text += ", ";
    text += names[i];
  }
  return text + "]";
}

std::string padding_literal(const Dims& low, const Dims& high) {
  std::string text = "dense<";
  for (size_t i = 0; i < low.size(); ++i) {
    text += i == 0 ? "[" : ", ";
    text += list(Dims{low[i], high[i]});
  }
  if (!low.empty()) text += "]";
  return text + "> : tensor<" + std::to_string(low.size()) + "x2xi64>";
}

std::string reversal_literal(const std::vector<bool>& reversal, size_t spatial) {
  std::string text = "array<i1";
  for (size_t i = 0; i < spatial; ++i) {
    text += i == 0 ? ": " : ", ";
    text += !reversal.empty() && reversal[i] ? "true" : "false";
  }
  return text + ">";
}

Dims or_ones(const Dims& dims, size_t count) { return dims.empty() ? Dims(count, 1) : dims; }
Dims or_zeros(const Dims& dims, size_t count) { return dims.empty() ? Dims(count, 0) : dims; }

}  // namespace

Value dot_general(Value a, Value b, const DotDims& dims, DType result) {
  const bool paired =
      dims.lhs_batch.size() == dims.rhs_batch.size() && dims.lhs_contract.size() == dims.rhs_contract.size();
  check(paired, "dot_general", "dims must come in pairs", {a, b});
  check(a.dtype() == b.dtype(), "dot_general", "operands must have one element type", {a, b});
  TensorType type{result, {}};
  const auto match = [&](const Dims& left, const Dims& right) {
    check(distinct_axes(left, a.rank()) && distinct_axes(right, b.rank()), "dot_general", "a dim is out of range",
          {a, b});
    for (size_t i = 0; i < left.size(); ++i) {
      check(a.dim(static_cast<size_t>(left[i])) == b.dim(static_cast<size_t>(right[i])), "dot_general",
            "paired dims differ in size", {a, b});
    }
  };
  match(dims.lhs_batch, dims.rhs_batch);
  match(dims.lhs_contract, dims.rhs_contract);
  for (int64_t axis : dims.lhs_batch) type.dims.push_back(a.dim(static_cast<size_t>(axis)));
  for (size_t i = 0; i < a.rank(); ++i) {
    if (!contains(dims.lhs_batch, i) && !contains(dims.lhs_contract, i)) type.dims.push_back(a.dim(i));
  }
  for (size_t i = 0; i < b.rank(); ++i) {
    if (!contains(dims.rhs_batch, i) && !contains(dims.rhs_contract, i)) type.dims.push_back(b.dim(i));
  }

  std::string text = "stablehlo.dot_general";
  const Value operands[] = {a, b};
  append_operands(text, operands);
  if (!dims.lhs_batch.empty()) text += ", batching_dims = " + list(dims.lhs_batch) + " x " + list(dims.rhs_batch);
  text += ", contracting_dims = " + list(dims.lhs_contract) + " x " + list(dims.rhs_contract);
  if (const std::string precision = dot_precision_name(a.builder(), a.dtype()); !precision.empty()) {
    text += ", precision = [" + precision + ", " + precision + "]";
  }
  text += " : (";
  append_types(text, operands);
  text += ") -> ";
  append_type(text, type);
  return a.builder().emit_one(std::move(text), type);
}

Value convolution(Value input, Value kernel, const ConvolutionDims& dims, const ConvolutionWindow& window,
                  int64_t feature_group_count, int64_t batch_group_count, DType result) {
  constexpr char kOp[] = "convolution";
  const Value operands[] = {input, kernel};
  const size_t spatial = dims.input_spatial.size();
  const std::string numbers =
      layout(input.rank(), dims.input_batch, "b", dims.input_feature, "f", dims.input_spatial, kOp, operands) + "x" +
      layout(kernel.rank(), dims.kernel_output_feature, "o", dims.kernel_input_feature, "i", dims.kernel_spatial, kOp,
             operands) +
      "->" + layout(spatial + 2, dims.output_batch, "b", dims.output_feature, "f", dims.output_spatial, kOp, operands);
  check(input.dtype() == kernel.dtype(), kOp, "operands must have one element type", operands);
  const auto size = [](Value v, int64_t axis) { return v.dim(static_cast<size_t>(axis)); };
  check(size(kernel, dims.kernel_input_feature) * feature_group_count == size(input, dims.input_feature), kOp,
        "the kernel's input features do not fit the input's", operands);

  const Dims strides = or_ones(window.strides, spatial), low = or_zeros(window.pad_low, spatial),
             high = or_zeros(window.pad_high, spatial), lhs = or_ones(window.lhs_dilation, spatial),
             rhs = or_ones(window.rhs_dilation, spatial);
  TensorType type{result, Dims(spatial + 2, 0)};
  type.dims[static_cast<size_t>(dims.output_batch)] = size(input, dims.input_batch) / batch_group_count;
  type.dims[static_cast<size_t>(dims.output_feature)] = size(kernel, dims.kernel_output_feature);
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t from = size(input, dims.input_spatial[i]), taps = size(kernel, dims.kernel_spatial[i]);
    const int64_t padded = (from == 0 ? 0 : (from - 1) * lhs[i] + 1) + low[i] + high[i];
    const int64_t span = taps == 0 ? 0 : (taps - 1) * rhs[i] + 1;
    type.dims[static_cast<size_t>(dims.output_spatial[i])] = padded < span ? 0 : (padded - span) / strides[i] + 1;
  }

  std::string attributes = "dimension_numbers = #stablehlo.conv<" + numbers +
                           ">, window_strides = " + i64_array(strides) + ", padding = " + padding_literal(low, high) +
                           ", lhs_dilation = " + i64_array(lhs) + ", rhs_dilation = " + i64_array(rhs) +
                           ", window_reversal = " + reversal_literal(window.reversal, spatial) +
                           ", feature_group_count = " + std::to_string(feature_group_count) +
                           " : i64, batch_group_count = " + std::to_string(batch_group_count) + " : i64";
  if (const std::string precision = dot_precision_name(input.builder(), input.dtype()); !precision.empty()) {
    const std::string one = "#stablehlo<precision " + precision + ">";
    attributes += ", precision_config = [" + one + ", " + one + "]";
  }
  return emit_generic_one(kOp, {input, kernel}, attributes, type);
}

Value cholesky(Value x, bool lower) {
  check(x.rank() >= 2 && x.dim(x.rank() - 1) == x.dim(x.rank() - 2), "cholesky", "needs square matrices", {x});
  return emit_generic_one("cholesky", {x}, std::string("lower = ") + (lower ? "true" : "false"), x.type());
}

Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal, Transpose transpose_a) {
  check(a.rank() >= 2 && a.rank() == b.rank() && a.dtype() == b.dtype(), "triangular_solve",
        "operands must have one element type and rank", {a, b});
  const size_t n = a.rank();
  check(a.dim(n - 1) == a.dim(n - 2) && b.dim(left_side ? n - 2 : n - 1) == a.dim(n - 1), "triangular_solve",
        "sizes do not fit", {a, b});
  const char* transposes[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  return emit_generic_one("triangular_solve", {a, b},
                          "left_side = " + flag(left_side) + ", lower = " + flag(lower) +
                              ", unit_diagonal = " + flag(unit_diagonal) + ", transpose_a = #stablehlo<transpose " +
                              transposes[static_cast<size_t>(transpose_a)] + ">",
                          b.type());
}

Value fft(Value x, FftKind kind, const Dims& length) {
  check(!length.empty() && length.size() <= 3 && length.size() <= x.rank(), "fft", "1 to 3 transformed dims", {x});
  const char* names[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  TensorType type = x.type();
  if (kind == FftKind::kRfft) {
    check(x.dtype() == DType::kF32 || x.dtype() == DType::kF64, "fft", "RFFT takes f32 or f64", {x});
    type.dtype = x.dtype() == DType::kF32 ? DType::kC64 : DType::kC128;
    type.dims.back() = length.back() / 2 + 1;
  } else {
    check(is_complex(x.dtype()), "fft", "needs complex input", {x});
  }
  if (kind == FftKind::kIrfft) {
    type.dtype = real_type(x.dtype());
    type.dims.back() = length.back();
  }
  return emit_generic_one("fft", {x},
                          std::string("fft_type = #stablehlo<fft_type ") + names[static_cast<size_t>(kind)] +
                              ">, fft_length = " + i64_array(length),
                          type);
}

}  // namespace tpu::stablehlo
