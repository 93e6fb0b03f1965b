#include "aten/result_strides.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace tpu::aten {
namespace {

void set_strides(at::Tensor& result, const Dims& order) {
  const Dims strides = dense_strides(result.sizes(), order);
  result = at::detail::empty_strided_meta(result.sizes(), {strides.data(), strides.size()}, result.scalar_type());
}

/// One of the first `operands` arguments in channels_last, the result in channels_last.
void keep_memory_format(at::ArrayRef<c10::IValue> arguments, size_t operands, at::Tensor& result) {
  for (size_t i = 0; i < operands; ++i) {
    const c10::MemoryFormat format = arguments[i].toTensor().suggest_memory_format();
    const bool last = (format == c10::MemoryFormat::ChannelsLast && result.dim() == 4) ||
                      (format == c10::MemoryFormat::ChannelsLast3d && result.dim() == 5);
    if (!last) continue;
    result = at::empty(result.sizes(), result.options(), format);
    return;
  }
}

/// Singular vectors and eigenvectors, which for CUDA are rows, are as LAPACK leaves them, column by column.
void order_by_column(at::Tensor& result) {
  if (result.dim() < 2) return;  // not wanted
  Dims order = iota(static_cast<size_t>(result.dim()));
  std::swap(order[order.size() - 2], order[order.size() - 1]);
  set_strides(result, order);
}

/// How a transform along `dims` leaves an array of these strides: the other dims outermost, in the order in which they
/// were, then the transformed ones in the order given.
Dims transformed(at::IntArrayRef strides, at::ArrayRef<int64_t> dims) {
  Dims order;
  for (int64_t dim : outermost_first(strides)) {
    if (std::ranges::find(dims, dim) == dims.end()) order.push_back(dim);
  }
  for (int64_t dim : dims) order.push_back(dim);
  return order;
}

enum class Transform : uint8_t { kComplex, kFromReal, kToReal };

/// Fourier transforms of self along dims. MKL's, which the CPU and fake tensors follow where torch is built with it.
void order_by_transform(at::ArrayRef<c10::IValue> arguments, Transform transform, at::Tensor& result) {
  const at::Tensor& self = arguments[0].toTensor();
  std::vector<int64_t> dims = arguments[1].toIntVector();
  for (int64_t& dim : dims) dim = at::maybe_wrap_dim(dim, self.dim());
  if (dims.empty()) return;
  if (!at::hasMKL()) return set_strides(result, iota(static_cast<size_t>(result.dim())));
  // The last dim of those between real and complex numbers is special.
  const auto sorted_end = dims.end() - (transform == Transform::kComplex ? 0 : 1);
  std::stable_sort(dims.begin(), sorted_end, [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  if (transform != Transform::kToReal) return set_strides(result, transformed(self.strides(), dims));
  Dims strides(self.strides().begin(), self.strides().end());
  if (dims.size() > 1) {  // first the others, as complex numbers
    const at::ArrayRef<int64_t> others(dims.data(), dims.size() - 1);
    strides = dense_strides(self.sizes(), transformed(self.strides(), others));
  }
  set_strides(result, transformed({strides.data(), strides.size()}, dims.back()));
}

}  // namespace

Dims outermost_first(at::IntArrayRef strides) {
  Dims order = iota(strides.size());
  const auto stride = [&](int64_t dim) { return strides[static_cast<size_t>(dim)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return stride(a) > stride(b); });
  return order;
}

Dims dense_strides(at::IntArrayRef sizes, const Dims& order) {
  Dims strides(order.size(), 0);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<size_t>(order[i]);
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  return strides;
}

void set_result_strides(const Operator& op, at::ArrayRef<c10::IValue> arguments, std::vector<at::Tensor>& results) {
  const std::string_view row = op.row->name;
  if (row == "convolution" || row == "convolution_overrideable") {
    keep_memory_format(arguments, 2, results[0]);
  } else if (row == "reflection_pad2d" || row == "replication_pad2d") {
    keep_memory_format(arguments, 1, results[0]);
  } else if (row == "_linalg_svd") {
    order_by_column(results[2]);
  } else if (row == "linalg_eig") {
    order_by_column(results[1]);
  } else if (row == "_fft_c2c") {
    order_by_transform(arguments, Transform::kComplex, results[0]);
  } else if (row == "_fft_r2c") {
    order_by_transform(arguments, Transform::kFromReal, results[0]);
  } else if (row == "_fft_c2r") {
    order_by_transform(arguments, Transform::kToReal, results[0]);
  }
}

}  // namespace tpu::aten
