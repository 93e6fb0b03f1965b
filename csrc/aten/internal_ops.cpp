#include "aten/internal_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "aten/dispatch.h"
#include "aten/result_strides.h"
#include "lowering/data_dependent.h"
#include "lowering/helpers.h"
#include "lowering/linear_algebra_matrix.h"
#include "lowering/table.h"

namespace tpu::aten {
namespace {

std::vector<lowering::Value> lower_nonzero(const lowering::OpCall& call) {
  return {lowering::nonzero_padded(call.tensor(0), call.integer(1))};
}

std::vector<lowering::Value> lower_nonzero_columns(const lowering::OpCall& call) {
  return {lowering::nonzero_columns(call.tensor(0), call.integer(1))};
}

std::vector<lowering::Value> lower_checked_info(const lowering::OpCall& call) {
  const lowering::Value info = call.tensor(0);
  lowering::check_none(call, stablehlo::compare(info, lowering::full_like(info, 0), stablehlo::Compare::kNe),
                       call.string(1));
  return {info};
}

const lowering::Row kNonzeroRow{.name = "nonzero_padded", .lower = lower_nonzero};
const lowering::Row kNonzeroColumnsRow{.name = "nonzero_columns", .lower = lower_nonzero_columns};
const lowering::Row kCheckedInfoRow{.name = "linalg_check", .lower = lower_checked_info};

at::Tensor nonzero_meta(const at::Tensor& mask, int64_t capacity) {
  return at::empty({capacity, mask.dim()}, mask.options().dtype(at::kLong));
}

at::Tensor nonzero_columns_meta(const at::Tensor& mask, int64_t capacity) {
  return at::empty({capacity * mask.dim()}, mask.options().dtype(at::kLong));
}

at::Tensor checked_info_meta(const at::Tensor& info, c10::string_view) { return at::empty_like(info); }

// As PyTorch's flash kernels, and its meta kernel, lay it out: like the query. Where heads lie inside rows, merging
// them again is a view.
at::Tensor attention_output(const at::Tensor& query, const at::Tensor& value) {
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  if (query.sizes() == sizes) return at::empty_like(query);
  const Dims strides = dense_strides(sizes, outermost_first(query.strides()));
  return at::empty_strided(sizes, {strides.data(), strides.size()}, query.options());
}

FourTensors attention_meta(const at::Tensor& query, const at::Tensor&, const at::Tensor& value,
                           const std::optional<at::Tensor>&, double, bool, bool, std::optional<double>) {
  std::vector<int64_t> rows(query.sizes().begin(), query.sizes().end() - 1);
  const bool wide = query.scalar_type() == at::kDouble;
  const auto seed = query.options().dtype(at::kLong);
  return {attention_output(query, value), at::empty(rows, query.options().dtype(wide ? at::kDouble : at::kFloat)),
          at::empty({}, seed), at::empty({}, seed)};
}

FourTensors attention_backward_meta(const at::Tensor&, const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const std::optional<at::Tensor>& bias,
                                    std::array<bool, 4> wanted, const at::Tensor&, const at::Tensor&,
                                    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, int64_t,
                                    int64_t, double, bool, const at::Tensor&, const at::Tensor&,
                                    std::optional<double>) {
  const auto like = [](bool want, const at::Tensor& tensor) { return want ? at::empty_like(tensor) : at::Tensor(); };
  const bool wants_bias = wanted[3] && bias && bias->defined();
  return {like(wanted[0], query), like(wanted[1], key), like(wanted[2], value),
          wants_bias ? at::empty_like(*bias) : at::Tensor()};
}

TORCH_LIBRARY(torch_tpu, m) {
  m.def("nonzero_padded(Tensor mask, int capacity) -> Tensor");
  m.def("nonzero_columns(Tensor mask, int capacity) -> Tensor");
  m.def("linalg_check(Tensor info, str message) -> Tensor");
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, float dropout_p, bool is_causal, "
      "bool return_debug_mask, *, float? scale) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? attn_bias, "
      "bool[4] grad_input_mask, Tensor out, Tensor logsumexp, Tensor? cum_seq_q, Tensor? cum_seq_k, int max_q, "
      "int max_k, float dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(torch_tpu, Meta, m) {
  m.impl("nonzero_padded", &nonzero_meta);
  m.impl("nonzero_columns", &nonzero_columns_meta);
  m.impl("linalg_check", &checked_info_meta);
  m.impl("attention", &attention_meta);
  m.impl("attention_backward", &attention_backward_meta);
}

void add(torch::Library& m, const char* name, const lowering::Row* row) {
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow((std::string("torch_tpu::") + name).c_str(), "");
  m.impl(name, torch::CppFunction::makeFromBoxedFunctor(
                   std::make_unique<RowKernel>(Operator(handle, handle, row, Form::kFunctional))));
}

TORCH_LIBRARY_IMPL(torch_tpu, PrivateUse1, m) {
  add(m, "nonzero_padded", &kNonzeroRow);
  add(m, "nonzero_columns", &kNonzeroColumnsRow);
  add(m, "linalg_check", &kCheckedInfoRow);
  add(m, "attention", lowering::find("_scaled_dot_product_fused_attention_overrideable"));
  add(m, "attention_backward", lowering::find("_scaled_dot_product_fused_attention_overrideable_backward"));
}

}  // namespace

at::Tensor nonzero_padded(const at::Tensor& mask, int64_t capacity) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torch_tpu::nonzero_padded", "")
                             .typed<at::Tensor(const at::Tensor&, int64_t)>();
  return op.call(mask, capacity);
}

at::Tensor nonzero_columns(const at::Tensor& mask, int64_t capacity) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torch_tpu::nonzero_columns", "")
                             .typed<at::Tensor(const at::Tensor&, int64_t)>();
  return op.call(mask, capacity);
}

at::Tensor checked_info(const at::Tensor& info, const std::string& message) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torch_tpu::linalg_check", "")
                             .typed<at::Tensor(const at::Tensor&, c10::string_view)>();
  return op.call(info, message);
}

FourTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& bias, double dropout_p, bool is_causal,
                      std::optional<double> scale) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("torch_tpu::attention", "")
          .typed<FourTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                             double, bool, bool, std::optional<double>)>();
  return op.call(query, key, value, bias, dropout_p, is_causal, false, scale);
}

FourTensors attention_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::optional<at::Tensor>& bias,
                               std::array<bool, 4> wanted, const at::Tensor& out, const at::Tensor& logsumexp,
                               double dropout_p, bool is_causal, const at::Tensor& seed, const at::Tensor& offset,
                               std::optional<double> scale) {
  using Signature =
      FourTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                  const std::optional<at::Tensor>&, std::array<bool, 4>, const at::Tensor&, const at::Tensor&,
                  const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, int64_t, int64_t, double, bool,
                  const at::Tensor&, const at::Tensor&, std::optional<double>);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("torch_tpu::attention_backward", "").typed<Signature>();
  return op.call(grad_out, query, key, value, bias, wanted, out, logsumexp, std::nullopt, std::nullopt, query.size(-2),
                 key.size(-2), dropout_p, is_causal, seed, offset, scale);
}

}  // namespace tpu::aten
