// Cells of LSTM and GRU: PyTorch's recurrent layers call fused cells on every device but the CPU. Ours are
// their formulas in operators that have rows. A cell is one operator to PyTorch, so strict launches it as one
// program; in fused mode the layer's loop fuses with it like anything else.

#include <ATen/ATen.h>
#include <torch/library.h>

#include "graph/policy.h"

namespace tpu::aten {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const MaybeTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

/// (hidden, cell, workspace): the workspace holds the four activated gates.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const MaybeTensor& input_bias,
                                                         const MaybeTensor& hidden_bias) {
  const graph::OperatorScope scope(input_gates.device().index());
  const auto parts = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
                   out = parts[3].sigmoid();
  const at::Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const MaybeTensor& grad_hy,
                                                                  const MaybeTensor& grad_cy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& workspace,
                                                                  bool has_bias) {
  const graph::OperatorScope scope(workspace.device().index());
  const auto parts = workspace.chunk(4, 1);
  const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const bool from_hidden = grad_hy && grad_hy->defined();
  const bool from_cell = grad_cy && grad_cy->defined();
  if (!from_hidden && !from_cell) return {};
  const at::Tensor squashed = cy.tanh();
  at::Tensor grad_cell = from_cell ? *grad_cy : at::zeros_like(cy);
  at::Tensor grad_out = at::zeros_like(out);
  if (from_hidden) {
    grad_cell = grad_cell + *grad_hy * out * (1 - squashed * squashed);
    grad_out = *grad_hy * squashed * out * (1 - out);
  }
  const at::Tensor gates = at::cat({grad_cell * cell * in * (1 - in), grad_cell * cx * forget * (1 - forget),
                                    grad_cell * in * (1 - cell * cell), grad_out},
                                   1);
  return {gates, grad_cell * forget, has_bias ? gates.sum(0) : at::Tensor()};
}

/// (hidden, workspace): reset, update and new gate, the old hidden state, the hidden part of the new gate.
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, const MaybeTensor& input_bias,
                                            const MaybeTensor& hidden_bias) {
  const graph::OperatorScope scope(input_gates.device().index());
  const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (in[0] + hidden[0]).sigmoid(), update = (in[1] + hidden[1]).sigmoid();
  const at::Tensor fresh = (in[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad_hy,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const graph::OperatorScope scope(workspace.device().index());
  const auto parts = workspace.chunk(5, 1);
  const at::Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden_new = parts[4];
  const at::Tensor grad_new = grad_hy * (1 - update) * (1 - fresh * fresh);
  const at::Tensor grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  const at::Tensor grad_reset = grad_new * hidden_new * reset * (1 - reset);
  const at::Tensor input_gates = at::cat({grad_reset, grad_update, grad_new}, 1);
  const at::Tensor hidden_gates = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
  return {input_gates, hidden_gates, grad_hy * update, has_bias ? input_gates.sum(0) : at::Tensor(),
          has_bias ? hidden_gates.sum(0) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace tpu::aten
