// Module.to() moves parameters by `param.data = moved`, which keeps their identity: tied weights stay tied
// and optimizers keep pointing at them. PyTorch allows that between the CPU and the devices it knows; this
// tells it that a tpu tensor is as plain as a CUDA one.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace tpu::aten {
namespace {

bool is_plain(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  return tensor.layout() == c10::Layout::Strided && !tensor.key_set().has(c10::DispatchKey::Python) &&
         (device == c10::DeviceType::CPU || device == c10::DeviceType::PrivateUse1);
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  return is_plain(self) && is_plain(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace tpu::aten
