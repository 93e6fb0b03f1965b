// Sums, products, extremes and truth values over dims. Norms and moments are in reduction_norm.cpp, scans
// in reduction_scan.cpp; this file exports the rows of all three.

#include "lowering/reduction.h"

#include "lowering/reduction_families.h"
#include "lowering/table.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

Dims reduced_axes(Value x, const Dims& dim) {
  if (x.rank() == 0) return {};
  return wrap_axes(dim, x.rank());
}

int64_t reduced_numel(Value x, const Dims& axes) {
  int64_t count = 1;
  for (int64_t axis : axes) count *= x.dim(axis);
  return count;
}

Value reduce_over(Value x, Reducer reducer, const Dims& axes, bool keep) {
  if (axes.empty()) return x;
  if (x.dtype() == DType::kBool) {
    if (reducer == Reducer::kMaximum) reducer = Reducer::kOr;
    if (reducer == Reducer::kMinimum) reducer = Reducer::kAnd;
  }
  return reduce_axes(x, reducer, axes, keep);
}

Value accumulator_input(Value x, DType dtype) { return convert(convert_like_torch(x, dtype), compute_type(dtype)); }

Value sum_over(Value x, const Dims& axes, bool keep) { return reduce_over(x, Reducer::kAdd, axes, keep); }

Value mean_over(Value x, const Dims& axes, bool keep) {
  Value sum = sum_over(x, axes, keep);
  return divide_exactly(sum, full_like(sum, static_cast<double>(reduced_numel(x, axes))));
}

Value expand_kept(Value kept, const Dims& sizes) {
  if (kept.dims() == sizes) return kept;
  return broadcast_to(kept, sizes);
}

Value positions(Value like, int64_t axis) {
  DType dtype = like.dim(axis) <= INT32_MAX ? DType::kS32 : DType::kS64;
  return iota(like.builder(), {dtype, like.dims()}, axis);
}

void require_elements(const OpCall& call, Value x, int64_t axis) {
  if (x.dim(axis) > 0) return;
  const std::string_view name = call.name().substr(0, call.name().find('.'));
  throw Error(Code::kIndex,
              std::string(name) + "(): Expected reduction dim " + std::to_string(axis) + " to have non-zero size.");
}

Extreme extreme(Value x, Reducer reducer, int64_t axis) {
  Value values = reduce_over(x, reducer, {axis}, true);
  Value hit = compare(x, expand_kept(values, x.dims()), Compare::kEq);
  // When the extreme is NaN nothing equals it; when it is not, there is no NaN.
  if (is_floating(x.dtype())) hit = bit_or(hit, is_nan(x));
  Value position = positions(x, axis);
  Value none = full_like(position, static_cast<double>(x.dim(axis)));
  return {values, reduce_over(select(hit, position, none), Reducer::kMinimum, {axis}, true)};
}

Value slice_axis(Value x, int64_t axis, int64_t start, int64_t limit) {
  Dims starts(x.rank(), 0), limits = x.dims(), steps(x.rank(), 1);
  starts[axis] = start;
  limits[axis] = limit;
  return slice(x, starts, limits, steps);
}

namespace {

using Results = std::vector<Value>;

/// Reduction of argument 0 over `dim`, computed in the accumulator of the result's dtype.
Value accumulate(const OpCall& call, Reducer reducer, const Dims& dim, bool keep) {
  DType dtype = call.result_type().dtype;
  Value x = accumulator_input(call.tensor(0), dtype);
  return convert(reduce_over(x, reducer, reduced_axes(x, dim), keep), dtype);
}

Results sum_all(const OpCall& call) { return {accumulate(call, Reducer::kAdd, {}, false)}; }
Results sum_dim(const OpCall& call) { return {accumulate(call, Reducer::kAdd, call.ints_or(1, {}), call.boolean(2))}; }

Results nansum(const OpCall& call) {
  DType dtype = call.result_type().dtype;
  Value x = accumulator_input(call.tensor(0), dtype);
  if (is_floating(x.dtype())) x = select(is_nan(x), full_like(x, 0.0), x);
  Value sum = sum_over(x, reduced_axes(x, call.ints_or(1, {})), call.boolean(2));
  return {convert(sum, dtype)};
}

Results prod_all(const OpCall& call) { return {accumulate(call, Reducer::kMultiply, {}, false)}; }
Results prod_dim(const OpCall& call) {
  return {accumulate(call, Reducer::kMultiply, {call.integer(1)}, call.boolean(2))};
}

// Unlike a sum's, the elements of a mean are not rounded to a narrow `dtype` before.
Value mean(const OpCall& call, const Dims& dim, bool keep) {
  DType dtype = call.result_type().dtype;
  Value x = call.operand(0, compute_type(dtype));
  const Dims axes = reduced_axes(x, dim);
  const std::optional<Value> count = call.present_count(0, axes);
  if (!count) return convert(mean_over(x, axes, keep), dtype);
  const Value sum = sum_over(x, axes, keep);
  return convert(divide(sum, broadcast_to(convert(*count, sum.dtype()), sum.dims())), dtype);
}
Results mean_all(const OpCall& call) { return {mean(call, {}, false)}; }
Results mean_dim(const OpCall& call) { return {mean(call, call.ints_or(1, {}), call.boolean(2))}; }

template <Reducer kReducer>
Results extreme_all(const OpCall& call) {
  Value x = call.tensor(0);
  if (x.type().numel() == 0) {
    throw Error(Code::kInvalidArgument, std::string(call.name()) +
                                            "(): Expected reduction dim to be specified for input.numel() == 0. "
                                            "Specify the reduction dim with the 'dim' argument.");
  }
  return {reduce_over(x, kReducer, reduced_axes(x, {}), false)};
}

template <Reducer kReducer>
Results extreme_dims(const OpCall& call) {
  Value x = call.tensor(0);
  return {reduce_over(x, kReducer, reduced_axes(x, call.ints_or(1, {})), call.boolean(2))};
}

Results aminmax(const OpCall& call) {
  Value x = call.tensor(0);
  bool has_dim = call.size() > 1 && !call.is_none(1);
  Dims axes = reduced_axes(x, has_dim ? Dims{call.integer(1)} : Dims{});
  bool keep = call.size() > 2 && call.boolean(2);
  Value low = reduce_over(x, Reducer::kMinimum, axes, keep);
  Value high = reduce_over(x, Reducer::kMaximum, axes, keep);
  // Without dim, keepdim still leaves every dim as size 1.
  return {reshape(low, call.result_type(0).dims), reshape(high, call.result_type(1).dims)};
}

/// max.dim and min.dim: (values, indices).
template <Reducer kReducer>
Results extreme_dim(const OpCall& call) {
  Value x = at_least_1d(call.tensor(0));
  int64_t axis = wrap_axis(call.integer(1), x.rank());
  require_elements(call, x, axis);
  Extreme found = extreme(x, kReducer, axis);
  return {reshape(found.values, call.result_type(0).dims),
          reshape(convert(found.indices, DType::kS64), call.result_type(1).dims)};
}

/// argmax and argmin: without dim, the position in the flattened tensor.
template <Reducer kReducer>
Results arg_extreme(const OpCall& call) {
  Value x = call.tensor(0);
  if (x.dtype() == DType::kBool) {
    throw Error(Code::kInvalidArgument, std::string(call.name()) + "(): does not support bool input");
  }
  x = call.is_none(1) ? reshape(x, {x.type().numel()}) : at_least_1d(x);
  int64_t axis = call.is_none(1) ? 0 : wrap_axis(call.integer(1), x.rank());
  Value indices = extreme(x, kReducer, axis).indices;
  return {reshape(convert(indices, DType::kS64), call.result_type().dims)};
}

/// all and any: bool, except that uint8 gives uint8.
Value truth(const OpCall& call, Reducer reducer, const Dims& axes, bool keep) {
  Value x = convert_like_torch(call.tensor(0), DType::kBool);
  return convert(reduce_over(x, reducer, axes, keep), call.result_type().dtype);
}

template <Reducer kReducer>
Results truth_all(const OpCall& call) {
  return {truth(call, kReducer, reduced_axes(call.tensor(0), {}), false)};
}

template <Reducer kReducer>
Results truth_dim(const OpCall& call) {
  return {truth(call, kReducer, reduced_axes(call.tensor(0), {call.integer(1)}), call.boolean(2))};
}

template <Reducer kReducer>
Results truth_dims(const OpCall& call) {
  // Unlike for sum, an empty list of dims reduces nothing here.
  bool none = !call.is_none(1) && call.ints(1).empty();
  Dims axes = none ? Dims{} : reduced_axes(call.tensor(0), call.ints_or(1, {}));
  return {truth(call, kReducer, axes, call.boolean(2))};
}

Results count_nonzero(const OpCall& call) {
  Value x = call.tensor(0);
  Dims dim;
  if (!call.is_none(1)) dim = call.name() == "count_nonzero" ? Dims{call.integer(1)} : call.ints(1);
  DType counter = x.type().numel() <= INT32_MAX ? DType::kS32 : DType::kS64;
  Value hits = convert(convert_like_torch(x, DType::kBool), counter);
  return {convert(sum_over(hits, reduced_axes(x, dim), false), DType::kS64)};
}

Results trace(const OpCall& call) {
  DType dtype = call.result_type().dtype;
  Value x = call.tensor(0);
  int64_t count = std::min(x.dim(0), x.dim(1));
  if (count == 0) return {scalar(call.builder(), 0.0, dtype)};
  // The diagonal is every (columns + 1)-th element of the flattened matrix.
  int64_t step = x.dim(1) + 1;
  Value diagonal = slice(reshape(x, {x.type().numel()}), {0}, {(count - 1) * step + 1}, {step});
  return {convert(sum_over(accumulator_input(diagonal, dtype), {0}, false), dtype)};
}

Results logsumexp(const OpCall& call) {
  DType dtype = call.result_type().dtype;
  Value x = accumulator_input(call.tensor(0), dtype);
  Dims axes = reduced_axes(x, call.ints_or(1, {}));
  bool keep = call.boolean(2);
  bool complex_input = is_complex(x.dtype());
  Value high = reduce_over(complex_input ? real(x) : x, Reducer::kMaximum, axes, true);
  // An infinite maximum would turn inf - inf into NaN; the sum alone then has the right value.
  Value infinite = compare(abs(high), full_like(high, INFINITY), Compare::kEq);
  high = select(infinite, full_like(high, 0.0), high);
  if (complex_input) high = complex(high, full_like(high, 0.0));
  Value sum = sum_over(exponential(subtract(x, expand_kept(high, x.dims()))), axes, keep);
  return {convert(add(log(sum), reshape(high, sum.dims())), dtype)};
}

constexpr Row kRows[] = {
    {"sum", sum_all},
    {"sum.dim_IntList", sum_dim},
    {"nansum", nansum},
    {"mean", mean_all},
    {"mean.dim", mean_dim},
    {"prod", prod_all},
    {"prod.dim_int", prod_dim},
    {"amax", extreme_dims<Reducer::kMaximum>},
    {"amin", extreme_dims<Reducer::kMinimum>},
    {.name = "aminmax", .lower = aminmax, .exact_out = true},
    {"_aminmax", aminmax},
    {"_aminmax.dim", aminmax},
    {"max", extreme_all<Reducer::kMaximum>},
    {"min", extreme_all<Reducer::kMinimum>},
    {"max.dim", extreme_dim<Reducer::kMaximum>},
    {"min.dim", extreme_dim<Reducer::kMinimum>},
    {"argmax", arg_extreme<Reducer::kMaximum>},
    {"argmin", arg_extreme<Reducer::kMinimum>},
    {"all", truth_all<Reducer::kAnd>},
    {"all.dim", truth_dim<Reducer::kAnd>},
    {"all.dims", truth_dims<Reducer::kAnd>},
    {"any", truth_all<Reducer::kOr>},
    {"any.dim", truth_dim<Reducer::kOr>},
    {"any.dims", truth_dims<Reducer::kOr>},
    {"count_nonzero", count_nonzero},
    {"count_nonzero.dim_IntList", count_nonzero},
    {"trace", trace},
    {"logsumexp", logsumexp},
};

}  // namespace

std::span<const Row> reduction_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    for (std::span<const Row> part : {reduction_norm_rows(), reduction_scan_rows()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
