// Reductions, windows and sorting.

#include <limits>

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

void check_init(const char* op, std::span<const Value> inputs, std::span<const Value> init) {
  check(!inputs.empty() && inputs.size() == init.size(), op, "one initial value for every input", inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].dims() == inputs[0].dims(), op, "inputs must have the same dims", inputs);
    check(init[i].rank() == 0 && init[i].dtype() == inputs[i].dtype(), op,
          "initial values must be 0-d of the inputs' types", inputs);
  }
}

std::vector<Value> joined(std::span<const Value> a, std::span<const Value> b) {
  std::vector<Value> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

Dims without(const Dims& sizes, const Dims& axes) {
  Dims kept;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) == axes.end()) kept.push_back(sizes[i]);
  }
  return kept;
}

const char* reducer_name(Reducer reducer) {
  switch (reducer) {
    case Reducer::kAdd:
      return "add";
    case Reducer::kMultiply:
      return "multiply";
    case Reducer::kMaximum:
      return "maximum";
    case Reducer::kMinimum:
      return "minimum";
    case Reducer::kAnd:
      return "and";
    case Reducer::kOr:
      return "or";
  }
  return "";
}

int64_t lowest_integer(DType dtype) {
  if (is_unsigned_integer(dtype) || dtype == DType::kBool) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - 8 * byte_size(dtype));
}

// Not for uint64, whose greatest value no int64 holds.
int64_t highest_integer(DType dtype) {
  if (dtype == DType::kBool) return 1;
  if (is_unsigned_integer(dtype)) return (int64_t{1} << (8 * byte_size(dtype))) - 1;
  return std::numeric_limits<int64_t>::max() >> (64 - 8 * byte_size(dtype));
}

Value all_ones(Builder& builder, const TensorType& type) { return logical_not(builder.constant(int64_t{0}, type)); }

// Least or greatest value of a float type: infinite where the type has infinities.
double extreme_float(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN:
      return 448;
    case DType::kF8E4M3FNUZ:
      return 240;
    case DType::kF8E5M2FNUZ:
      return 57344;
    default:
      return std::numeric_limits<double>::infinity();
  }
}

std::string window_attributes(const Window& window, const char* op, size_t rank, std::span<const Value> operands,
                              bool dilations) {
  const auto full = [rank](const Dims& dims, int64_t fallback) { return dims.empty() ? Dims(rank, fallback) : dims; };
  const Dims strides = full(window.strides, 1), low = full(window.pad_low, 0), high = full(window.pad_high, 0);
  check(window.sizes.size() == rank && strides.size() == rank && low.size() == rank && high.size() == rank, op,
        "one window entry for every dim", operands);
  std::string text = "window_dimensions = " + i64_array(window.sizes) + ", window_strides = " + i64_array(strides);
  if (dilations) {
    text += ", base_dilations = " + i64_array(full(window.base_dilations, 1));
    text += ", window_dilations = " + i64_array(full(window.window_dilations, 1));
  }
  if (rank == 0) return text;
  text += ", padding = dense<[";
  for (size_t i = 0; i < rank; ++i) {
    if (i != 0) text += ", ";
    text += list(Dims{low[i], high[i]});
  }
  return text + "]> : tensor<" + std::to_string(rank) + "x2xi64>";
}

// Number of window positions along each dim.
Dims windowed_sizes(const Dims& sizes, const Window& window) {
  Dims result(sizes.size(), 0);
  const auto at = [](const Dims& dims, size_t i, int64_t fallback) { return dims.empty() ? fallback : dims[i]; };
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t dilated = sizes[i] == 0 ? 0 : (sizes[i] - 1) * at(window.base_dilations, i, 1) + 1;
    const int64_t padded = dilated + at(window.pad_low, i, 0) + at(window.pad_high, i, 0);
    const int64_t span = (window.sizes[i] - 1) * at(window.window_dilations, i, 1) + 1;
    result[i] = padded < span ? 0 : (padded - span) / at(window.strides, i, 1) + 1;
  }
  return result;
}

}  // namespace

std::vector<Value> reduce(std::span<const Value> inputs, std::span<const Value> init, const Dims& axes,
                          const Region& body) {
  check_init("reduce", inputs, init);
  check(distinct_axes(axes, inputs[0].rank()), "reduce", "axes must be distinct and in range", inputs);
  Builder& builder = inputs[0].builder();
  std::vector<TensorType> results;
  for (Value input : inputs) results.push_back({input.dtype(), without(input.dims(), axes)});
  const std::string region = builder.region(reducer_arguments(inputs), body);
  return emit_generic(builder, "reduce", joined(inputs, init), "dimensions = " + i64_array(axes), results, region);
}

Value reduce(Value x, Reducer reducer, const Dims& axes) {
  if (axes.empty()) return x;
  check(distinct_axes(axes, x.rank()), "reduce", "axes must be distinct and in range", {x});
  const Value init = neutral(x.builder(), reducer, x.dtype());
  const TensorType result{x.dtype(), without(x.dims(), axes)};
  std::string text = "stablehlo.reduce(";
  append_ref(text, x);
  text += " init: ";
  append_ref(text, init);
  text += ") applies stablehlo.";
  text += reducer_name(reducer);
  text += " across dimensions = " + list(axes) + " : (";
  append_type(text, x.type());
  text += ", ";
  append_type(text, init.type());
  text += ") -> ";
  append_type(text, result);
  return x.builder().emit_one(std::move(text), result);
}

Value neutral(Builder& builder, Reducer reducer, DType dtype) {
  const TensorType type{dtype, {}};
  switch (reducer) {
    case Reducer::kAdd:
    case Reducer::kOr:
      return builder.constant(int64_t{0}, type);
    case Reducer::kMultiply:
      return builder.constant(int64_t{1}, type);
    case Reducer::kAnd:
      return is_integer(dtype) ? all_ones(builder, type) : builder.constant(int64_t{1}, type);
    case Reducer::kMaximum:
      if (is_floating(dtype)) return builder.constant(-extreme_float(dtype), type);
      return builder.constant(lowest_integer(dtype), type);
    case Reducer::kMinimum:
      if (is_floating(dtype)) return builder.constant(extreme_float(dtype), type);
      if (dtype == DType::kU64) return all_ones(builder, type);
      return builder.constant(highest_integer(dtype), type);
  }
  throw Error(Code::kInternal, "neutral: unknown reducer");
}

std::vector<Value> reduce_window(std::span<const Value> inputs, std::span<const Value> init, const Window& window,
                                 const Region& body) {
  check_init("reduce_window", inputs, init);
  Builder& builder = inputs[0].builder();
  const std::string attributes = window_attributes(window, "reduce_window", inputs[0].rank(), inputs, true);
  std::vector<TensorType> results;
  for (Value input : inputs) results.push_back({input.dtype(), windowed_sizes(input.dims(), window)});
  const std::string region = builder.region(reducer_arguments(inputs), body);
  return emit_generic(builder, "reduce_window", joined(inputs, init), attributes, results, region);
}

Value select_and_scatter(Value x, Value source, Value init, const Window& window, const Region& select_body,
                         const Region& scatter_body) {
  check(init.rank() == 0 && init.dtype() == x.dtype() && source.dtype() == x.dtype(), "select_and_scatter",
        "operands must have one element type", {x, source, init});
  const Value operands[] = {x, source, init};
  const std::string attributes = window_attributes(window, "select_and_scatter", x.rank(), operands, false);
  check(source.dims() == windowed_sizes(x.dims(), window), "select_and_scatter", "the source does not fit the window",
        operands);
  Builder& builder = x.builder();
  const auto arguments = reducer_arguments({&x, 1});
  const std::string regions[] = {builder.region(arguments, select_body), builder.region(arguments, scatter_body)};
  return emit_generic_one("select_and_scatter", {x, source, init}, attributes, x.type(), join_regions(regions));
}

std::vector<Value> sort(std::span<const Value> inputs, int64_t axis, bool stable, const Region& less) {
  check(!inputs.empty(), "sort", "needs an input", inputs);
  check(axis >= 0 && axis < static_cast<int64_t>(inputs[0].rank()), "sort", "axis out of range", inputs);
  std::vector<TensorType> results, arguments;
  for (Value input : inputs) {
    check(input.dims() == inputs[0].dims(), "sort", "inputs must have the same dims", inputs);
    results.push_back(input.type());
    arguments.push_back({input.dtype(), {}});
    arguments.push_back({input.dtype(), {}});
  }
  Builder& builder = inputs[0].builder();
  const std::string region = builder.region(arguments, less);
  return emit_generic(builder, "sort", inputs,
                      "dimension = " + std::to_string(axis) + " : i64, is_stable = " + (stable ? "true" : "false"),
                      results, region);
}

}  // namespace tpu::stablehlo
