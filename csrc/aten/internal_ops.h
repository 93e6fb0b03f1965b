#pragma once
// Operators of our own, in namespace torch_tpu: pieces that ATen's schemas do not have. They go through the
// same signatures, plans and table rows as ATen's, so they fuse with what stands around them.

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

namespace tpu::aten {

/// int64 [capacity, mask.dim()]: positions of the true elements in row-major order, then the first of them again.
at::Tensor nonzero_padded(const at::Tensor& mask, int64_t capacity);

/// int64 [mask.dim() * capacity]: the same positions dim by dim, without padding between the dims.
at::Tensor nonzero_columns(const at::Tensor& mask, int64_t capacity);

/// `info`, as factorisations give it: 0 for each matrix that is well. A launch raises LinAlgError with `message` if
/// there is another.
at::Tensor checked_info(const at::Tensor& info, const std::string& message);

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// (output, logsumexp, philox seed, philox offset)
FourTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& bias, double dropout_p, bool is_causal,
                      std::optional<double> scale);

/// Gradients of query, key, value and bias; undefined where not wanted.
FourTensors attention_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::optional<at::Tensor>& bias,
                               std::array<bool, 4> wanted, const at::Tensor& out, const at::Tensor& logsumexp,
                               double dropout_p, bool is_causal, const at::Tensor& seed, const at::Tensor& offset,
                               std::optional<double> scale);

}  // namespace tpu::aten
