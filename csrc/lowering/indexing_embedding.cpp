// Embedding tables: lookup, dense gradient, renormalisation, and bags (sums, means and maxima of rows).

#include <algorithm>
#include <cmath>

#include "lowering/indexing.h"
#include "stablehlo/ops.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

constexpr char kOutOfRange[] = "index out of range in self";

Results lower_embedding(const OpCall& call) {
  const Value weight = call.tensor(0);
  const Value index = call.tensor(1);
  if (call.result_type().numel() == 0) return {call.builder().constant(0.0, call.result_type())};
  const Value rows = checked_index(call, index, weight.dim(0), 0, {.message = kOutOfRange});
  return {take_slices(weight, rows, 0)};
}

/// How often each of `size` rows occurs among `rows`; int32.
Value occurrences(Value rows, int64_t size) {
  Builder& builder = rows.builder();
  const Value none = builder.constant(int64_t{0}, {DType::kS32, {size}});
  const Value ones = builder.constant(int64_t{1}, {DType::kS32, rows.dims()});
  return scatter_slices(none, rows, ones, 0, Combine::kAdd);
}

/// `x` [n, d] times `factor` [n] per row.
Value scale_rows(Value x, Value factor) { return multiply(x, broadcast_in_dim(factor, x.dims(), {0})); }

/// Rows whose position is `excluded` are sent out of range, where a scatter drops them.
Value without_row(Value rows, int64_t excluded, int64_t size) {
  if (excluded < 0) return rows;
  const Value hit = compare(rows, full_like(rows, static_cast<double>(excluded)), Compare::kEq);
  return select(hit, full_like(rows, static_cast<double>(size)), rows);
}

/// Gradient of a table [size, d] from gradients [n, d] of the looked-up `rows` [n]; both in the compute type.
Value table_gradient(Value grad, Value rows, int64_t size, int64_t padding_row, bool scale_by_frequency) {
  if (scale_by_frequency && grad.dim(0) > 0) {
    const Value count = take_slices(occurrences(rows, size), rows, 0);
    grad = scale_rows(grad, divide(full_like(convert(count, grad.dtype()), 1), convert(count, grad.dtype())));
  }
  const Value zeros = grad.builder().constant(0.0, {grad.dtype(), {size, grad.dim(1)}});
  return scatter_slices(zeros, without_row(rows, padding_row, size), grad, 0, Combine::kAdd);
}

Results lower_embedding_dense_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  const int64_t size = type.dims[0];
  const int64_t width = type.dims[1];
  const Value index = call.tensor(1);
  const int64_t count = index.type().numel();
  const DType dtype = compute_type(type.dtype);
  const Value grad = reshape(convert_like_torch(call.tensor(0), dtype), {count, width});
  const Value rows = convert(reshape(index, {count}), index_dtype(size + 1));
  const Value total = table_gradient(grad, rows, size, call.integer(3), call.boolean(4));
  return {convert_like_torch(total, type.dtype)};
}

/// Norm of order `p` of each row of `x` [n, d].
Value row_norm(Value x, double p) {
  const Value magnitude = abs(x);
  if (std::isinf(p)) return reduce(magnitude, Reducer::kMaximum, {1});
  if (p == 1) return reduce(magnitude, Reducer::kAdd, {1});
  if (p == 2) return sqrt(reduce(multiply(x, x), Reducer::kAdd, {1}));
  const Value sum = reduce(power(magnitude, full_like(magnitude, p)), Reducer::kAdd, {1});
  return power(sum, full_like(sum, 1 / p));
}

/// Rows that are looked up and longer than max_norm are scaled down to it.
Results lower_embedding_renorm(const OpCall& call) {
  const Value weight = call.tensor(0);
  const Value index = reshape(call.tensor(1), {call.tensor(1).type().numel()});
  const double max_norm = call.real(2);
  if (index.dim(0) == 0) return {weight};
  const Value rows = checked_index(call, index, weight.dim(0), 0, {.message = kOutOfRange});
  const Value looked_up = convert(take_slices(weight, rows, 0), compute_type(weight.dtype()));
  const Value norm = row_norm(looked_up, call.real(3));
  const Value limit = full_like(norm, max_norm);
  const Value scale = divide(limit, add(norm, full_like(norm, 1e-7)));
  const Value factor = select(compare(norm, limit, Compare::kGt), scale, full_like(norm, 1));
  // Equal indices write equal rows, so replacing is exact whatever the order.
  const Value scaled = convert(scale_rows(looked_up, factor), weight.dtype());
  return {scatter_slices(weight, rows, scaled, 0, Combine::kReplace)};
}

// ---- bags
// Results: (output [bags, d], offset2bag [n], bag_size, max_indices). bag_size counts the rows of each bag without
// padding in every mode; it may be longer than the number of bags, then zeros follow.

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

/// Bag of each of `count` elements from the ascending first positions of the bags.
Value bag_of_elements(const OpCall& call, Value offsets, int64_t bags, int64_t count) {
  offsets = convert(offsets, DType::kS64);
  const auto at = [&](int64_t i) { return reshape(slice(offsets, {i}, {i + 1}, {1}), {}); };
  const Value length = scalar(call.builder(), count, DType::kS64);
  call.check(compare(at(0), full_like(length, 0), Compare::kNe), Code::kInvalidArgument,
             "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0.");
  call.check(compare(at(offsets.dim(0) - 1), length, Compare::kGt), Code::kInvalidArgument,
             "offsets[-1] can not be greater than input's length " + std::to_string(count));
  const DType dtype = index_dtype(count + 1);
  const Value first = convert(slice(offsets, {0}, {bags}, {1}), dtype);
  const Value none = call.builder().constant(int64_t{0}, {dtype, {count}});
  const Value starts = scatter_slices(none, first, full_like(first, 1), 0, Combine::kAdd);
  const Value begun = running_sum(starts);
  return subtract(begun, full_like(begun, 1));
}

/// The elements of all bags: table rows, their bags, and which count (those that are not padding).
struct BagElements {
  Value rows;    // [n], positions in the table
  Value bags;    // [n]
  Value counts;  // [n], i1
};

Value is_not(Value rows, int64_t padding_row) {
  if (padding_row < 0) return rows.builder().constant(int64_t{1}, {DType::kBool, rows.dims()});
  return compare(rows, full_like(rows, static_cast<double>(padding_row)), Compare::kNe);
}

/// Positions of elements that do not count, moved to `beyond`, where a scatter drops them.
Value only_counted(Value positions, Value counts, int64_t beyond) {
  return select(counts, positions, full_like(positions, static_cast<double>(beyond)));
}

struct BagMaximum {
  Value output;  // [bags, d], zeros for empty bags
  Value index;   // [bags, d], table row of the first maximum; int64
};

BagMaximum bag_maximum(Value looked_up, const BagElements& e, int64_t bags) {
  Builder& builder = looked_up.builder();
  const int64_t count = looked_up.dim(0);
  const Dims sizes{bags, looked_up.dim(1)};
  const Value target = only_counted(e.bags, e.counts, bags);
  const Value lowest = stablehlo::neutral(builder, Reducer::kMaximum, looked_up.dtype());
  const Value best = scatter_slices(broadcast_to(lowest, sizes), target, looked_up, 0, Combine::kMaximum);
  // Among the elements that equal their bag's maximum, the first.
  const Value hit = compare(looked_up, take_slices(best, e.bags, 0), Compare::kEq);
  const Value place = stablehlo::iota(builder, {DType::kS32, looked_up.dims()}, 0);
  const Value unfound = full_like(place, static_cast<double>(count));
  const Value none = builder.constant(count, {DType::kS32, sizes});
  const Value first = scatter_slices(none, target, select(hit, place, unfound), 0, Combine::kMinimum);
  const Value empty = compare(first, none, Compare::kEq);
  const Value row = convert(take_slices(e.rows, first, 0), DType::kS64);
  return {select(empty, full_like(best, 0), best), select(empty, full_like(row, 0), row)};
}

/// `x` [n] cut or extended with zeros to `length`.
Value fit_length(Value x, int64_t length) {
  const int64_t kept = std::min(length, x.dim(0));
  return pad(slice(x, {0}, {kept}, {1}), scalar(x.builder(), int64_t{0}, x.dtype()), {0}, {length - kept}, {0});
}

/// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
///  padding_idx)
Results lower_embedding_bag(const OpCall& call) {
  Builder& builder = call.builder();
  const TensorType& type = call.result_type(0);
  const int64_t bags = type.dims[0], mode = call.integer_or(4, kSum);
  const Value weight = call.tensor(0), index = call.tensor(1), offsets = call.tensor(2);
  const int64_t count = index.dim(0);
  if (bags == 0 || count == 0) {
    Results zeros;
    for (size_t k = 0; k < 4; ++k) {
      const TensorType& wanted = call.result_type(k);
      zeros.push_back(convert(builder.constant(int64_t{0}, {DType::kS32, wanted.dims}), wanted.dtype));
    }
    return zeros;
  }
  BagElements e;
  e.rows = checked_index(call, index, weight.dim(0), 0, {.code = Code::kInvalidArgument});
  e.bags = bag_of_elements(call, offsets, bags, count);
  e.counts = is_not(e.rows, call.integer_or(8, -1));
  const DType dtype = compute_type(type.dtype);
  Value looked_up = convert(take_slices(weight, e.rows, 0), dtype);
  if (call.has(6)) looked_up = scale_rows(looked_up, call.operand(6, dtype));

  const Value target = only_counted(e.bags, e.counts, bags);
  const Value sizes = occurrences(target, bags);
  Value output, chosen;
  if (mode == kMax) {
    const BagMaximum maximum = bag_maximum(looked_up, e, bags);
    output = maximum.output;
    chosen = maximum.index;
  } else {
    output = scatter_slices(builder.constant(0.0, {dtype, type.dims}), target, looked_up, 0, Combine::kAdd);
    if (mode == kMean) {
      const Value divisor = convert(maximum(sizes, full_like(sizes, 1)), dtype);
      output = divide(output, broadcast_in_dim(divisor, output.dims(), {0}));
    }
    chosen = builder.constant(int64_t{0}, {DType::kS64, call.result_type(3).dims});
  }
  return {convert(output, type.dtype),
          convert(fit_length(e.bags, call.result_type(1).dims[0]), call.result_type(1).dtype),
          convert(fit_length(sizes, call.result_type(2).dims[0]), call.result_type(2).dtype),
          convert(chosen, call.result_type(3).dtype)};
}

/// Arguments of the two backward operators, whose schemas differ in order.
struct BagGradient {
  Value grad, index, bags, bag_size, max_index;
  bool scale_by_frequency;
  int64_t mode;
  size_t sample_weights;  // argument number
  int64_t padding_row;
};

Results bag_gradient(const OpCall& call, const BagGradient& g) {
  const TensorType& type = call.result_type();
  const DType dtype = compute_type(type.dtype);
  const int64_t size = type.dims[0], bags = g.grad.dim(0);
  const Value grad = convert(g.grad, dtype);
  const Value zeros = call.builder().constant(0.0, {dtype, type.dims});
  if (bags == 0 || g.index.dim(0) == 0) return {convert(zeros, type.dtype)};
  const Value bag_size = fit_length(g.bag_size, bags);
  if (g.mode == kMax) {
    const Value filled = compare(bag_size, full_like(bag_size, 0), Compare::kNe);
    const Value kept = select(broadcast_in_dim(filled, grad.dims(), {0}), grad, full_like(grad, 0));
    const Value rows = convert(g.max_index, index_dtype(size));
    return {convert(scatter_along_axis(zeros, rows, kept, 0, Combine::kAdd), type.dtype)};
  }
  const Value element_bags = convert(g.bags, index_dtype(bags));
  Value element_grad = take_slices(grad, element_bags, 0);
  if (g.mode == kMean) {
    const Value divisor = convert(take_slices(bag_size, element_bags, 0), dtype);
    element_grad = divide(element_grad, broadcast_in_dim(divisor, element_grad.dims(), {0}));
  }
  if (call.has(g.sample_weights)) element_grad = scale_rows(element_grad, call.operand(g.sample_weights, dtype));
  const Value rows = convert(g.index, index_dtype(size + 1));
  return {convert(table_gradient(element_grad, rows, size, g.padding_row, g.scale_by_frequency), type.dtype)};
}

/// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
///  per_sample_weights, padding_idx)
Results lower_embedding_bag_backward(const OpCall& call) {
  if (call.boolean(9)) throw Error(Code::kNotImplemented, "embedding_bag: sparse gradients");
  return bag_gradient(call, {call.tensor(0), call.tensor(1), call.tensor(3), call.tensor(4), call.tensor(5),
                             call.boolean(7), call.integer(8), 10, call.integer_or(11, -1)});
}

/// (grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
///  per_sample_weights, padding_idx)
Results lower_embedding_bag_dense_backward(const OpCall& call) {
  return bag_gradient(call, {call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(3), call.tensor(4),
                             call.boolean(6), call.integer(7), 8, call.integer_or(9, -1)});
}

/// (grad, weight, indices, offsets, offset2bag, mode, padding_idx): the dot product of each element's row with
/// its bag's gradient.
Results lower_sample_weights_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  const Value grad = call.tensor(0), weight = call.tensor(1), index = call.tensor(2);
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const DType dtype = compute_type(type.dtype);
  const Value rows = convert(index, index_dtype(weight.dim(0)));
  const Value bags = convert(call.tensor(4), index_dtype(grad.dim(0)));
  const Value products =
      multiply(convert(take_slices(grad, bags, 0), dtype), convert(take_slices(weight, rows, 0), dtype));
  const Value sums = reduce(products, Reducer::kAdd, {1});
  const Value counts = is_not(rows, call.integer_or(6, -1));
  return {convert(select(counts, sums, full_like(sums, 0)), type.dtype)};
}

const Row kRows[] = {
    {"embedding", lower_embedding},
    {"embedding_dense_backward", lower_embedding_dense_backward},
    {"embedding_renorm_", lower_embedding_renorm},
    {"_embedding_bag", lower_embedding_bag},
    {"_embedding_bag_forward_only", lower_embedding_bag},
    {"_embedding_bag_backward", lower_embedding_bag_backward},
    {"_embedding_bag_dense_backward", lower_embedding_bag_dense_backward},
    {"_embedding_bag_per_sample_weights_backward", lower_sample_weights_backward},
};

}  // namespace

std::span<const Row> embedding_rows() { return kRows; }

}  // namespace tpu::lowering
