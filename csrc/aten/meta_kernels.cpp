// Metadata of operators that PyTorch gives kernels only for devices, neither for meta tensors nor for the CPU.

#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace tpu::aten {
namespace {

at::Tensor baddbmm_dtype(const at::Tensor&, const at::Tensor& batch1, const at::Tensor& batch2,
                         c10::ScalarType out_dtype, const at::Scalar&, const at::Scalar&) {
  return at::bmm(batch1, batch2).to(out_dtype);
}

// What `_convolution` calls for a device that is none of PyTorch's own; `convolution` itself comes to us first.
at::Tensor convolution_overrideable(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                                    c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                                std::move(groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_overrideable(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef, c10::SymIntArrayRef,
    c10::SymIntArrayRef, bool, c10::SymIntArrayRef, c10::SymInt, std::array<bool, 3> wanted) {
  return {wanted[0] ? at::empty_like(input) : at::Tensor(), wanted[1] ? at::empty_like(weight) : at::Tensor(),
          wanted[2] ? at::empty({grad.size(1)}, grad.options()) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("baddbmm.dtype", &baddbmm_dtype);
  m.impl("convolution_overrideable", &convolution_overrideable);
  m.impl("convolution_backward_overrideable", &convolution_backward_overrideable);
}

}  // namespace
}  // namespace tpu::aten
