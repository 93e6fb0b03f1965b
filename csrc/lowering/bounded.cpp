#include "lowering/bounded.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "lowering/helpers.h"

namespace tpu::lowering {

BoundedArgument* BoundedCall::tensor(size_t i) {
  return i < tensors_.size() && tensors_[i].size() == 1 ? tensors_[i].data() : nullptr;
}

int64_t BoundedCall::integer_or(size_t i, int64_t fallback) const {
  const auto* value = std::get_if<int64_t>(&attributes_[i]);
  return value != nullptr ? *value : fallback;
}

bool BoundedCall::boolean_or(size_t i, bool fallback) const {
  const auto* value = std::get_if<bool>(&attributes_[i]);
  return value != nullptr ? *value : fallback;
}

double BoundedCall::real_or(size_t i, double fallback) const {
  if (const auto* value = std::get_if<double>(&attributes_[i])) return *value;
  const auto* scalar = std::get_if<ScalarArg>(&attributes_[i]);
  return scalar != nullptr && scalar->known ? scalar->known->as_double() : fallback;
}

Dims BoundedCall::ints_or(size_t i, Dims fallback) const {
  const auto* value = std::get_if<Dims>(&attributes_[i]);
  return value != nullptr ? *value : fallback;
}

void BoundedCall::fill(BoundedArgument* argument, Fill fill, uint64_t dims) {
  if (argument == nullptr) return;
  argument->filled = argument->changing & dims;
  argument->fill = fill;
}

namespace {

uint64_t bit(int64_t dim) { return uint64_t{1} << dim; }

uint64_t bits(const Dims& dims, size_t rank) {
  uint64_t all = 0;
  for (int64_t dim : dims) all |= bit(wrap_axis(dim, rank));
  return all;
}

uint64_t last_dims(const BoundedArgument& argument, size_t count) {
  uint64_t all = 0;
  for (size_t i = argument.rank() - std::min(count, argument.rank()); i < argument.rank(); ++i) all |= uint64_t{1} << i;
  return all;
}

bool any_changes(BoundedCall& call) {
  for (const auto& list : call.tensors()) {
    for (const BoundedArgument& tensor : list) {
      if (tensor.changing != 0) return true;
    }
  }
  return false;
}

// ---- kinds of rows

bool independent(BoundedCall&) { return true; }

// Elements behind the end are divisors like any other, and a 0 among them would be reported.
bool divides(BoundedCall& call) {
  BoundedCall::fill(call.tensor(1), Fill::kOne);
  return true;
}

template <Fill kFill, size_t kArgument = 0>
bool fills(BoundedCall& call) {
  BoundedCall::fill(call.tensor(kArgument), kFill);
  return true;
}

bool all_zero(BoundedCall& call) {
  for (auto& list : call.tensors()) {
    for (BoundedArgument& tensor : list) BoundedCall::fill(&tensor, Fill::kZero);
  }
  return true;
}

// Reduces argument 0 over the dims of argument 1, or over all.
template <Fill kFill>
bool reduces(BoundedCall& call) {
  BoundedArgument* x = call.tensor(0);
  uint64_t dims = ~uint64_t{0};
  if (call.size() > 1) {
    const Dims named = call.ints_or(1, {});
    const int64_t one = call.integer_or(1, INT64_MIN);
    if (!named.empty()) dims = bits(named, x->rank());
    if (one != INT64_MIN) dims = bit(wrap_axis(one, x->rank()));
  }
  BoundedCall::fill(x, kFill, dims);
  return true;
}

bool mean(BoundedCall& call) {
  call.tensor(0)->asked = true;
  return reduces<Fill::kZero>(call);
}

// A position in the flattened tensor counts the elements behind the end.
template <Fill kFill>
bool finds(BoundedCall& call) {
  BoundedArgument* x = call.tensor(0);
  const int64_t dim = call.integer_or(1, INT64_MIN);
  if (dim == INT64_MIN) return (x->changing & ~uint64_t{1}) == 0 && reduces<kFill>(call);
  BoundedCall::fill(x, kFill, bit(wrap_axis(dim, x->rank())));
  return true;
}

// Of all elements of dims that do not change.
bool keeps_out_of_dim(BoundedCall& call, const Dims& dims) {
  const BoundedArgument* x = call.tensor(0);
  return (x->changing & (dims.empty() ? ~uint64_t{0} : bits(dims, x->rank()))) == 0;
}

// The lowest of the whole numbers is one like others: 0 of uint8 and bool has the exponential 1.
bool logsumexp(BoundedCall& call) {
  return is_floating(call.tensor(0)->dtype) ? reduces<Fill::kLowest>(call)
                                            : keeps_out_of_dim(call, call.ints_or(1, {}));
}

bool moments(BoundedCall& call) { return keeps_out_of_dim(call, call.ints_or(1, {})); }

bool vector_norm(BoundedCall& call) {
  const double order = call.real_or(1, -1);  // one that is not known may be negative
  const Dims dims = call.ints_or(2, {});
  if (order < 0) return keeps_out_of_dim(call, dims);
  BoundedArgument* x = call.tensor(0);
  BoundedCall::fill(x, Fill::kZero, dims.empty() ? ~uint64_t{0} : bits(dims, x->rank()));
  return true;
}

bool softmax(BoundedCall& call) {
  BoundedArgument* x = call.tensor(0);
  BoundedCall::fill(x, Fill::kLowest, bit(wrap_axis(call.integer_or(1, -1), x->rank())));
  return true;
}

// (gradient, output, dim): sums over dim.
bool softmax_backward(BoundedCall& call) {
  BoundedArgument* grad = call.tensor(0);
  const uint64_t dim = bit(wrap_axis(call.integer_or(2, -1), grad->rank()));
  BoundedCall::fill(grad, Fill::kZero, dim);
  BoundedCall::fill(call.tensor(1), Fill::kZero, dim);
  return true;
}

// ---- products: both factors are 0 where they are summed, since 0 times what stands there may be NaN.

template <size_t kFirst>
bool product(BoundedCall& call) {
  BoundedArgument* a = call.tensor(kFirst);
  BoundedArgument* b = call.tensor(kFirst + 1);
  if (a == nullptr || b == nullptr || a->rank() == 0 || b->rank() == 0) return false;
  const size_t columns = a->rank() - 1, rows = b->rank() >= 2 ? b->rank() - 2 : 0;
  BoundedCall::fill(a, Fill::kZero, uint64_t{1} << columns);
  BoundedCall::fill(b, Fill::kZero, uint64_t{1} << rows);
  return true;
}

// addbmm sums over the batch as well.
bool product_over_batch(BoundedCall& call) {
  BoundedCall::fill(call.tensor(1), Fill::kZero, bit(0) | bit(2));
  BoundedCall::fill(call.tensor(2), Fill::kZero, bit(0) | bit(1));
  return true;
}

// ---- attention: the row masks the keys behind the end itself (OpCall::present_size).

bool no_dropout(BoundedCall& call, size_t dropout) { return call.real_or(dropout, 1) == 0; }

// Numbers of queries, of keys, and the batch may change.
bool attention_dims(const BoundedArgument* x) {
  if (x == nullptr || x->rank() < 3) return false;
  const uint64_t batch = x->rank() == 4 ? 1 : 0;
  return (x->changing & ~(batch | uint64_t{1} << (x->rank() - 2))) == 0;
}

bool attention(BoundedCall& call) {
  for (size_t i = 0; i < 3; ++i) {
    if (!attention_dims(call.tensor(i))) return false;
  }
  // Which random numbers a place gets depends on the sizes.
  if (!no_dropout(call, 4)) return false;
  call.tensor(1)->asked = true;
  BoundedCall::fill(call.tensor(2), Fill::kZero);
  BoundedCall::fill(call.tensor(3), Fill::kZero);
  return true;
}

bool attention_backward(BoundedCall& call) {
  for (size_t i = 1; i < 4; ++i) {
    if (!attention_dims(call.tensor(i))) return false;
  }
  call.tensor(2)->asked = true;
  return no_dropout(call, 12) && all_zero(call);
}

// ---- normalization

// (input, normalized_shape, ...): over the last dims.
bool layer_norm(BoundedCall& call) {
  const BoundedArgument* x = call.tensor(0);
  return (x->changing & last_dims(*x, call.ints_or(1, {}).size())) == 0;
}

// (gradient, input, normalized_shape, ...): weights' gradients are sums over the other dims.
bool layer_norm_backward(BoundedCall& call) {
  const BoundedArgument* x = call.tensor(1);
  return (x->changing & last_dims(*x, call.ints_or(2, {}).size())) == 0 && all_zero(call);
}

// ---- indexing: what stands behind the end of an index may be no index.

// (self, dim, index): rows ask for the size of the indexed dim, which an index has to be below.
bool takes_along_dim(BoundedCall& call) {
  call.tensor(0)->asked = true;
  return fills<Fill::kZero, 2>(call);
}

bool embedding(BoundedCall& call) { return !call.tensor(0)->changes(0) && fills<Fill::kZero, 1>(call); }

// (gradient, indices, rows, padding_idx, scale_grad_by_freq): zeros are added to row 0.
bool embedding_backward(BoundedCall& call) { return !call.boolean_or(4, true) && all_zero(call); }

bool indexes(BoundedCall& call) {
  if (call.tensor(0) == nullptr) return false;
  call.tensor(0)->asked = true;
  for (BoundedArgument& index : call.list(1)) BoundedCall::fill(&index, Fill::kZero);
  return true;
}

// ---- sums by index: behind the end of an index, zeros are added to the first element. The addends must end where the
// index does.

// (self, dim, index, addends)
bool scatter_add(BoundedCall& call) {
  BoundedArgument *x = call.tensor(0), *index = call.tensor(2), *addends = call.tensor(3);
  if (x->rank() == 0 || x->changes(wrap_axis(call.integer_or(1, 0), x->rank()))) return false;
  if (index->present != addends->present || index->changing != addends->changing) return false;
  BoundedCall::fill(index, Fill::kZero);
  BoundedCall::fill(addends, Fill::kZero);
  return true;
}

bool index_add(BoundedCall& call) {
  BoundedArgument *x = call.tensor(0), *index = call.tensor(2), *addends = call.tensor(3);
  if (x->rank() == 0 || addends->rank() != x->rank()) return false;
  const int64_t dim = wrap_axis(call.integer_or(1, 0), x->rank());
  if (x->changes(dim) || index->rank() != 1 || index->changes(0) != addends->changes(dim)) return false;
  BoundedCall::fill(index, Fill::kZero);
  BoundedCall::fill(addends, Fill::kZero);
  return true;
}

// (self, indices, values, accumulate), of the first dims by vectors, whose values are not broadcast.
bool index_put(BoundedCall& call) {
  BoundedArgument *x = call.tensor(0), *addends = call.tensor(2);
  auto& indices = call.list(1);
  if (x->changing != 0 || !call.boolean_or(3, false) || addends->rank() == 0) return false;
  size_t vectors = 0;
  while (vectors < indices.size() && indices[vectors].rank() == 1) ++vectors;
  if (vectors == 0 || vectors < indices.size() || addends->rank() != x->rank() - vectors + 1) return false;
  for (BoundedArgument& index : indices) {
    if (index.present[0] != addends->present[0] || index.changes(0) != addends->changes(0)) return false;
    BoundedCall::fill(&index, Fill::kZero);
  }
  BoundedCall::fill(addends, Fill::kZero);
  return true;
}

// ---- convolutions: what is behind the end counts as the padding does.

bool has_fixed_channels(const BoundedArgument* images, const BoundedArgument* kernels) {
  return !images->changes(1) && kernels->changing == 0;
}

// (input, weight, bias, ...)
bool convolution(BoundedCall& call) {
  return has_fixed_channels(call.tensor(0), call.tensor(1)) && fills<Fill::kZero>(call);
}

// (gradient, input, weight, ...)
bool convolution_backward(BoundedCall& call) {
  return has_fixed_channels(call.tensor(1), call.tensor(2)) && !call.tensor(0)->changes(1) && all_zero(call);
}

// ---- images whose last dims do not change

template <size_t kDims>
bool keeps_out_of_last_dims(BoundedCall& call) {
  for (const auto& list : call.tensors()) {
    for (const BoundedArgument& tensor : list) {
      if ((tensor.changing & last_dims(tensor, kDims)) != 0) return false;
    }
  }
  return true;
}

// Places behind the end may be in other planes: zeros are added to the first.
template <size_t kDims>
bool max_pool_backward(BoundedCall& call) {
  return keeps_out_of_last_dims<kDims>(call) && all_zero(call);
}

// Statistics of a channel, which the row divides by the present counts.
template <size_t kImages, size_t kTraining = SIZE_MAX>
bool batch_norm(BoundedCall& call) {
  BoundedArgument* images = call.tensor(kImages);
  if (images->changes(1)) return false;
  images->asked = kTraining != SIZE_MAX && call.boolean_or(kTraining, true);
  return all_zero(call);
}

// ---- losses

// (input, target, ...) or (gradient, input, target, ...): the row takes the mean of what is present. Of one size, so
// that either tells it.
template <size_t kInput>
bool pointwise_loss(BoundedCall& call) {
  BoundedArgument *input = call.tensor(kInput), *target = call.tensor(kInput + 1);
  if (input == nullptr || target == nullptr || input->sizes != target->sizes) return false;
  if (input->changing != target->changing) return false;
  input->asked = true;
  BoundedCall::fill(input, Fill::kZero);
  return true;
}

// (input, target, weight, reduction, ignore_index): targets behind the end are ignored, and not counted.
bool nll_loss(BoundedCall& call) {
  BoundedArgument* target = call.tensor(1);
  if (call.tensor(0)->changes(call.tensor(0)->rank() == 1 ? 0 : 1)) return false;
  BoundedCall::fill(call.tensor(0), Fill::kZero);
  BoundedCall::fill(target, Fill::kNumber);
  target->number = call.integer_or(4, -100);
  return true;
}

// (gradient, input, target, weight, reduction, ignore_index, total_weight)
bool nll_loss_backward(BoundedCall& call) {
  BoundedArgument* target = call.tensor(2);
  if (call.tensor(1)->changes(call.tensor(1)->rank() == 1 ? 0 : 1)) return false;
  BoundedCall::fill(call.tensor(0), Fill::kZero);
  BoundedCall::fill(target, Fill::kNumber);
  target->number = call.integer_or(5, -100);
  return true;
}

// ---- random numbers: those of an element are found by its place in the flattened tensor, which is the same in a
// stored one if only the first dim that is not 1 changes.
bool random(BoundedCall& call) {
  for (const auto& list : call.tensors()) {
    for (const BoundedArgument& tensor : list) {
      size_t first = 0;
      while (first < tensor.rank() && tensor.sizes[first] == 1) ++first;
      if ((tensor.changing & ~bit(static_cast<int64_t>(first))) != 0) return false;
    }
  }
  return any_changes(call);
}

// ---- joining

bool cat(BoundedCall& call) {
  auto& parts = call.list(0);
  for (BoundedArgument& part : parts) part.asked = true;
  return !parts.empty();
}

// (self, pad, value): the row pads behind the present end.
bool constant_pad(BoundedCall& call) {
  call.tensor(0)->asked = true;
  return true;
}

bool repeat(BoundedCall& call) {
  const BoundedArgument* x = call.tensor(0);
  const Dims repeats = call.ints_or(1, {});
  const size_t added = repeats.size() - x->rank();
  for (size_t i = added; i < repeats.size(); ++i) {
    if (repeats[i] != 1 && x->changes(static_cast<int64_t>(i - added))) return false;
  }
  return true;
}

// (self, k, dim, largest, sorted)
bool topk(BoundedCall& call) {
  BoundedArgument* x = call.tensor(0);
  const uint64_t dim = bit(wrap_axis(call.integer_or(2, -1), x->rank()));
  // NaN is the largest of all, and -inf may be among those that are asked for: their places would be found behind.
  return (x->changing & dim) == 0;
}

bool flip(BoundedCall& call) { return keeps_out_of_dim(call, call.ints_or(1, {0})); }

template <size_t kDim>
bool sort(BoundedCall& call) {
  const BoundedArgument* x = call.tensor(0);
  return x->rank() > 0 && !x->changes(wrap_axis(call.integer_or(kDim, -1), x->rank()));
}

bool glu(BoundedCall& call) {
  const BoundedArgument* x = call.tensor(0);
  return !x->changes(wrap_axis(call.integer_or(1, -1), x->rank()));
}

const std::unordered_map<std::string_view, BoundedRule>& special_rules() {
  static const auto* const rules = new std::unordered_map<std::string_view, BoundedRule>{
      // elementwise with checks
      {"div.Tensor_mode", divides},
      {"div.Scalar_mode", divides},
      {"floor_divide", divides},
      {"floor_divide.Scalar", divides},
      {"remainder.Tensor", divides},
      {"remainder.Scalar", divides},
      {"remainder.Scalar_Tensor", divides},
      {"fmod.Tensor", divides},
      {"fmod.Scalar", divides},
      {"pow.Tensor_Tensor", divides},
      {"pow.Scalar", divides},
      {"glu", glu},
      {"glu_backward", nullptr},
      {"glu_jvp", nullptr},
      {"glu_backward_jvp", nullptr},
      {"_prelu_kernel", independent},
      {"rrelu_with_noise_backward", independent},
      {"copy", independent},
      {"fill.Scalar", independent},
      {"fill.Tensor", independent},
      {"zero", independent},
      {"masked_fill.Scalar", independent},
      {"masked_fill.Tensor", independent},
      {"arange.start_step", independent},
      {"native_dropout", random},
      {"native_dropout_backward", independent},
      {"uniform_", random},
      {"normal_", random},
      {"bernoulli_.float", random},
      {"tril", independent},
      {"triu", independent},
      // reductions
      {"sum", reduces<Fill::kZero>},
      {"sum.dim_IntList", reduces<Fill::kZero>},
      {"nansum", reduces<Fill::kZero>},
      {"mean", mean},
      {"mean.dim", mean},
      {"prod", reduces<Fill::kOne>},
      {"prod.dim_int", reduces<Fill::kOne>},
      {"amax", reduces<Fill::kLowest>},
      {"amin", reduces<Fill::kHighest>},
      {"max", reduces<Fill::kLowest>},
      {"min", reduces<Fill::kHighest>},
      {"max.dim", finds<Fill::kLowest>},
      {"min.dim", finds<Fill::kHighest>},
      {"argmax", finds<Fill::kLowest>},
      {"argmin", finds<Fill::kHighest>},
      {"all", reduces<Fill::kOne>},
      {"all.dim", reduces<Fill::kOne>},
      {"all.dims", reduces<Fill::kOne>},
      {"any", reduces<Fill::kZero>},
      {"any.dim", reduces<Fill::kZero>},
      {"any.dims", reduces<Fill::kZero>},
      {"count_nonzero", reduces<Fill::kZero>},
      {"count_nonzero.dim_IntList", reduces<Fill::kZero>},
      {"logsumexp", logsumexp},
      {"var.correction", moments},
      {"std.correction", moments},
      {"var_mean.correction", moments},
      {"std_mean.correction", moments},
      {"linalg_vector_norm", vector_norm},
      // An element depends on those before it only.
      {"cumsum", independent},
      {"cumprod", independent},
      // normalization
      {"_softmax", softmax},
      {"_log_softmax", softmax},
      {"_safe_softmax", softmax},
      {"_softmax_backward_data", softmax_backward},
      {"_log_softmax_backward_data", softmax_backward},
      {"native_layer_norm", layer_norm},
      {"native_layer_norm_backward", layer_norm_backward},
      {"_fused_rms_norm", layer_norm},
      {"_fused_rms_norm_backward", layer_norm_backward},
      // products
      {"mm", product<0>},
      {"bmm", product<0>},
      {"mv", product<0>},
      {"dot", product<0>},
      {"addmm", product<1>},
      {"baddbmm", product<1>},
      {"addmv", product<1>},
      {"addbmm", product_over_batch},
      {"_addmm_activation", product<1>},
      {"_scaled_dot_product_fused_attention_overrideable", attention},
      {"_scaled_dot_product_fused_attention_overrideable_backward", attention_backward},
      // images
      {"convolution", convolution},
      {"convolution_overrideable", convolution},
      {"convolution_backward", convolution_backward},
      {"convolution_backward_overrideable", convolution_backward},
      {"_native_batch_norm_legit_functional", batch_norm<0, 5>},
      {"_native_batch_norm_legit_no_training", batch_norm<0>},
      {"_batch_norm_no_update", batch_norm<0>},
      {"native_batch_norm_backward", batch_norm<1, 7>},
      {"max_pool2d_with_indices", keeps_out_of_last_dims<2>},
      {"max_pool2d_with_indices_backward", max_pool_backward<2>},
      {"max_pool3d_with_indices", keeps_out_of_last_dims<3>},
      {"max_pool3d_with_indices_backward", max_pool_backward<3>},
      {"avg_pool2d", keeps_out_of_last_dims<2>},
      {"avg_pool2d_backward", keeps_out_of_last_dims<2>},
      {"avg_pool3d", keeps_out_of_last_dims<3>},
      {"avg_pool3d_backward", keeps_out_of_last_dims<3>},
      {"_adaptive_avg_pool2d", keeps_out_of_last_dims<2>},
      {"_adaptive_avg_pool2d_backward", keeps_out_of_last_dims<2>},
      {"upsample_nearest2d", keeps_out_of_last_dims<2>},
      {"upsample_bilinear2d", keeps_out_of_last_dims<2>},
      {"upsample_bicubic2d", keeps_out_of_last_dims<2>},
      // indexing
      {"scatter_add", scatter_add},
      {"index_add", index_add},
      {"index_put", index_put},
      {"_unsafe_index_put", index_put},
      {"gather", takes_along_dim},
      {"index_select", takes_along_dim},
      {"index.Tensor", indexes},
      {"embedding", embedding},
      {"embedding_dense_backward", embedding_backward},
      // losses
      {"mse_loss", pointwise_loss<0>},
      {"mse_loss_backward", pointwise_loss<1>},
      {"smooth_l1_loss", pointwise_loss<0>},
      {"smooth_l1_loss_backward", pointwise_loss<1>},
      {"huber_loss", pointwise_loss<0>},
      {"huber_loss_backward", pointwise_loss<1>},
      {"binary_cross_entropy", pointwise_loss<0>},
      {"binary_cross_entropy_backward", pointwise_loss<1>},
      {"binary_cross_entropy_with_logits", pointwise_loss<0>},
      {"soft_margin_loss", pointwise_loss<0>},
      {"soft_margin_loss_backward", pointwise_loss<1>},
      {"nll_loss_forward", nll_loss},
      {"nll_loss_backward", nll_loss_backward},
      // shape
      {"cat", cat},
      {"stack", independent},
      {"constant_pad_nd", constant_pad},
      {"repeat", repeat},
      {"flip", flip},
      {"sort", sort<1>},
      {"sort.stable", sort<2>},
      {"topk", topk},
  };
  return *rules;
}

bool belongs_to(std::span<const Row> rows, std::string_view name) {
  return std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
}

}  // namespace

BoundedRule bounded_rule(std::string_view row) {
  const auto found = special_rules().find(row);
  if (found != special_rules().end()) return found->second;
  return belongs_to(elementwise_rows(), row) || belongs_to(activation_rows(), row) ? independent : nullptr;
}

}  // namespace tpu::lowering
