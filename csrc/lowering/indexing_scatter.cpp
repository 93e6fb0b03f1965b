// Scatters along one dimension: scatter.*, scatter_add, scatter_reduce.

#include "lowering/indexing.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

/// Integer means round towards minus infinity, as in PyTorch.
Value divide_by_count(Value sum, Value count) {
  if (!is_integer(sum.dtype())) return divide(sum, count);
  const Value quotient = divide(sum, count);
  const Value inexact = compare(multiply(quotient, count), sum, Compare::kNe);
  const Value below = bit_and(inexact, compare(sum, full_like(sum, 0), Compare::kLt));
  return select(below, subtract(quotient, full_like(quotient, 1)), quotient);
}

struct Reduction {
  Combine combine;
  Reducer reducer;
};

Reduction reduction_named(const std::string& name) {
  if (name == "sum" || name == "mean" || name == "add") return {Combine::kAdd, Reducer::kAdd};
  if (name == "prod" || name == "multiply") return {Combine::kMultiply, Reducer::kMultiply};
  if (name == "amax") return {Combine::kMaximum, Reducer::kMaximum};
  if (name == "amin") return {Combine::kMinimum, Reducer::kMinimum};
  throw Error(Code::kInvalidArgument, "reduce argument must be either sum, prod, mean, amax or amin, got " + name);
}

/// One of the scatter rows: (self, dim, index, src or value, ...), 0-d ones as [1].
struct ElementUpdate {
  Value x;
  int64_t axis;
  Value positions;
  Value updates;  // dims of the index
};

/// Updates cut to the index's dims; a scalar is spread over them.
Value updates_for(const OpCall& call, const Dims& sizes, DType dtype) {
  if (call.is_scalar(3)) return broadcast_to(call.operand(3, dtype), sizes);
  const Value source = at_least_1d(convert_like_torch(call.tensor(3), dtype));
  if (source.dims() == sizes) return source;
  return slice(source, Dims(sizes.size(), 0), sizes, Dims(sizes.size(), 1));
}

ElementUpdate element_update(const OpCall& call, DType dtype) {
  const Value x = at_least_1d(convert_like_torch(call.tensor(0), dtype));
  const int64_t axis = wrap_axis(call.integer(1), x.rank());
  const Value index = at_least_1d(call.tensor(2));
  const Value positions = checked_index(call, index, x.dim(axis), axis, {.code = Code::kInvalidArgument});
  return {x, axis, positions, updates_for(call, index.dims(), dtype)};
}

Results finish(const OpCall& call, Value x) {
  return {reshape(convert_like_torch(x, call.result_type().dtype), call.result_type().dims)};
}

bool index_is_empty(const OpCall& call) { return call.tensor(2).type().numel() == 0; }

Results scatter_with(const OpCall& call, Combine combine) {
  if (index_is_empty(call)) return {call.tensor(0)};
  const DType dtype = call.result_type().dtype;
  const ElementUpdate u = element_update(call, combine == Combine::kReplace ? dtype : compute_type(dtype));
  return finish(call, scatter_along_axis(u.x, u.positions, u.updates, u.axis, combine));
}

Results lower_scatter(const OpCall& call) { return scatter_with(call, Combine::kReplace); }
Results lower_scatter_add(const OpCall& call) { return scatter_with(call, Combine::kAdd); }
Results lower_scatter_named(const OpCall& call) { return scatter_with(call, reduction_named(call.string(4)).combine); }

Results lower_scatter_reduce(const OpCall& call) {
  if (index_is_empty(call)) return {call.tensor(0)};
  const ElementUpdate u = element_update(call, compute_type(call.result_type().dtype));
  const auto scatter_to = [&u](Value x, Value updates, Combine combine) {
    return scatter_along_axis(x, u.positions, updates, u.axis, combine);
  };
  return finish(call, scatter_reduction(u.x, u.updates, call.string(4), call.boolean_or(5, true), scatter_to));
}

const Row kRows[] = {
    {"scatter.src", lower_scatter},          {"scatter.value", lower_scatter},
    {"scatter.reduce", lower_scatter_named}, {"scatter.value_reduce", lower_scatter_named},
    {"scatter_add", lower_scatter_add},      {"scatter_reduce.two", lower_scatter_reduce},
};

}  // namespace

Value scatter_reduction(Value x, Value updates, const std::string& reduce, bool include_self,
                        const ScatterTo& scatter_to) {
  const Reduction reduction = reduction_named(reduce);
  Value start = x;
  if (!include_self) {
    const Value neutral = stablehlo::neutral(x.builder(), reduction.reducer, x.dtype());
    start = scatter_to(x, broadcast_to(neutral, updates.dims()), Combine::kReplace);
  }
  const Value reduced = scatter_to(start, updates, reduction.combine);
  if (reduce != "mean") return reduced;
  // Elements without an update divide by one, whether or not self counts as a value.
  const Value initial = full_like(x, include_self ? 1 : 0);
  const Value count = scatter_to(initial, full_like(updates, 1), Combine::kAdd);
  return divide_by_count(reduced, maximum(count, full_like(count, 1)));
}

std::span<const Row> scatter_rows() { return kRows; }

}  // namespace tpu::lowering
