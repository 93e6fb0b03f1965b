// fill_ (with a number) and zero_ of expanded tensors: every other write to those is refused, but to write one number
// twice is well defined, and PyTorch allows it.

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/as_strided.h>
#include <torch/library.h>

#include <mutex>

#include "aten/registration.h"

namespace tpu::aten {
namespace {

// Expanded dims are written once.
at::Tensor without_repeats(const at::Tensor& tensor) {
  c10::SmallVector<int64_t, 8> sizes(tensor.sizes());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.strides()[i] == 0) sizes[i] = 1;
  }
  return tensor.as_strided(sizes, tensor.strides(), tensor.storage_offset());
}

class FillKernel final : public c10::OperatorKernel {
 public:
  explicit FillKernel(std::string name) : name_(std::move(name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    std::call_once(found_, [&] { row_ = &row_kernel(name_); });  // not made yet when this kernel is registered
    const size_t first = stack->size() - op.schema().arguments().size();
    const at::Tensor self = (*stack)[first].toTensor();
    if (at::has_internal_overlap(self) == at::MemOverlap::Yes) (*stack)[first] = without_repeats(self);
    (*row_)(op, keys, stack);
    stack->back() = self;
  }

 private:
  const std::string name_;
  std::once_flag found_;
  RowKernel* row_ = nullptr;
};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"fill_.Scalar", "zero_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<FillKernel>(name)));
  }
}

}  // namespace
}  // namespace tpu::aten
