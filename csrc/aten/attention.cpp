// scaled_dot_product_attention: PyTorch's front end asks which kernel to use and then calls the overrideable
// one, whose schema has results that are no tensors; ours fills those in.

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "aten/internal_ops.h"

namespace tpu::aten {
namespace {

// at::SDPBackend (ATen/SDPBackend.h)
constexpr int64_t kMath = 0;
constexpr int64_t kOverrideable = 4;

/// Whether `tensor` is one of many under vmap, at any level of torch.func's transforms.
bool is_batched(const at::Tensor& tensor) {
  if (at::functorch::isBatchedTensor(tensor)) return true;
  const at::functorch::TensorWrapper* const wrapper = at::functorch::maybeGetTensorWrapper(tensor);
  return wrapper != nullptr && is_batched(wrapper->value());
}

int64_t fused_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double, bool is_causal, std::optional<double>, bool) {
  // PyTorch has batching rules for the kernels of its own devices only, and for what attention is made of.
  const bool has_mask = mask && mask->defined();
  if (is_batched(query) || is_batched(key) || is_batched(value) || (has_mask && is_batched(*mask))) return kMath;
  // Under torch.compile sizes may be symbols. Comparing them is a guard.
  const bool ranks = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  const auto size = [](const at::Tensor& tensor, int64_t dim) { return tensor.sym_size(dim); };
  const bool batches = ranks && size(query, 0) == size(key, 0) && size(query, 0) == size(value, 0);
  const bool types = at::isFloatingType(query.scalar_type()) && query.scalar_type() == key.scalar_type() &&
                     query.scalar_type() == value.scalar_type();
  const bool empty = query.sym_numel() == 0 || key.sym_numel() == 0 || value.sym_numel() == 0;
  const bool heads = batches && !empty && size(key, 1) == size(value, 1) && size(query, 1) % size(key, 1) == 0;
  const bool mask_ok = !has_mask || (!is_causal && mask->dim() >= 2 && mask->dim() <= 4);
  return heads && types && mask_ok ? kOverrideable : kMath;
}

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                                 at::Tensor, at::Tensor>;

ForwardResult forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& bias, double dropout_p, bool is_causal, bool return_debug_mask,
                      std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask, "return_debug_mask is not supported on the tpu device");
  TORCH_CHECK(dropout_p >= 0 && dropout_p <= 1, "dropout probability has to be between 0 and 1, but got ", dropout_p);
  auto [output, logsumexp, seed, offset] = attention(query, key, value, bias, dropout_p, is_causal, scale);
  return {output,          logsumexp, at::Tensor(), at::Tensor(), query.sym_size(2),
          key.sym_size(2), seed,      offset,       at::Tensor()};
}

FourTensors backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const at::Tensor& bias, std::array<bool, 4> wanted, const at::Tensor& out,
                     const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
                     double dropout_p, bool is_causal, const at::Tensor& seed, const at::Tensor& offset,
                     std::optional<double> scale) {
  const std::optional<at::Tensor> mask = bias.defined() ? std::optional(bias) : std::nullopt;
  return attention_backward(grad_out, query, key, value, mask, wanted, out, logsumexp, dropout_p, is_causal, seed,
                            offset, scale);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &fused_choice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &forward);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &backward);
}

}  // namespace
}  // namespace tpu::aten

// scaled_dot_product_attention asks this table, and not the operator _fused_sdp_choice.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu::aten::fused_choice)
}
