// Operations that move or create elements without looking at their values, gather and scatter.

#include <algorithm>

#include "base/error.h"
#include "stablehlo/emit.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

std::string attribute(const char* name, const Dims& values) { return std::string(name) + " = " + i64_array(values); }

void append_dims_field(std::string& text, const char* name, const Dims& dims) {
  if (dims.empty()) return;
  text += std::string(name) + " = " + list(dims) + ", ";
}

std::vector<Value> with_starts(std::initializer_list<Value> first, std::span<const Value> start, const char* op) {
  std::vector<Value> operands(first);
  for (Value s : start) {
    check(s.rank() == 0 && is_integer(s.dtype()) && s.dtype() == start[0].dtype(), op,
          "start indices must be 0-d integers of one type", start);
    operands.push_back(s);
  }
  check(start.size() == operands[0].rank(), op, "one start index for every dim", operands);
  return operands;
}

using Op = Builder::Origin::Op;

const Builder::Origin* origin(Value x, Op op) { return x.builder().find_origin(x, op); }

Dims without_ones(const Dims& sizes) {
  Dims rest;
  for (int64_t size : sizes) {
    if (size != 1) rest.push_back(size);
  }
  return rest;
}

// Whether a transpose leaves the order of elements as it is.
bool moves_only_ones(const Dims& sizes, const Dims& axes) {
  int64_t last = -1;
  for (int64_t axis : axes) {
    if (sizes[static_cast<size_t>(axis)] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

int64_t place_of(const Dims& axes, int64_t axis) { return std::find(axes.begin(), axes.end(), axis) - axes.begin(); }

}  // namespace

Value broadcast_in_dim(Value x, const Dims& sizes, const Dims& axes) {
  check(axes.size() == x.rank() && distinct_axes(axes, sizes.size()), "broadcast_in_dim",
        "one result axis for every operand dim", {x});
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t to = sizes[static_cast<size_t>(axes[i])];
    check(x.dim(i) == 1 || x.dim(i) == to, "broadcast_in_dim", "an operand dim is neither 1 nor the result's", {x});
  }
  if (x.dims() == sizes && axes == tpu::iota(sizes.size())) return x;
  if (const Value constant = x.builder().resized_constant(x, sizes); constant.defined()) return constant;
  if (const auto* from = origin(x, Op::kBroadcast)) {
    Dims both;
    for (int64_t axis : from->axes) both.push_back(axes[static_cast<size_t>(axis)]);
    return broadcast_in_dim(from->operand, sizes, both);
  }
  if (const auto* from = origin(x, Op::kReshape); from != nullptr && from->operand.dims() == without_ones(x.dims())) {
    Dims kept;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (x.dim(i) != 1) kept.push_back(axes[i]);
    }
    return broadcast_in_dim(from->operand, sizes, kept);
  }
  const TensorType result{x.dtype(), sizes};
  std::string text = "stablehlo.broadcast_in_dim";
  append_operands(text, {&x, 1});
  text += ", dims = " + list(axes) + " : (";
  append_type(text, x.type());
  text += ") -> ";
  append_type(text, result);
  const Value made = x.builder().emit_one(std::move(text), result);
  x.builder().note_origin(made, {Op::kBroadcast, x, axes});
  return made;
}

Value reshape(Value x, const Dims& sizes) {
  if (x.dims() == sizes) return x;
  const TensorType result{x.dtype(), sizes};
  check(product(sizes) == x.type().numel(), "reshape", "the number of elements changes", {x});
  if (const Value constant = x.builder().resized_constant(x, sizes); constant.defined()) return constant;
  if (const auto* from = origin(x, Op::kReshape)) return reshape(from->operand, sizes);
  if (const auto* from = origin(x, Op::kBroadcast); from != nullptr && from->operand.rank() == 0) {
    return broadcast_in_dim(from->operand, sizes, {});
  }
  std::string text = "stablehlo.reshape";
  append_operands(text, {&x, 1});
  text += " : (";
  append_type(text, x.type());
  text += ") -> ";
  append_type(text, result);
  const Value made = x.builder().emit_one(std::move(text), result);
  x.builder().note_origin(made, {Op::kReshape, x, {}});
  return made;
}

Value transpose(Value x, const Dims& axes) {
  check(axes.size() == x.rank() && distinct_axes(axes, x.rank()), "transpose", "axes must be a permutation", {x});
  if (axes == tpu::iota(axes.size())) return x;
  TensorType result{x.dtype(), {}};
  for (int64_t axis : axes) result.dims.push_back(x.dim(static_cast<size_t>(axis)));
  if (moves_only_ones(x.dims(), axes)) return reshape(x, result.dims);
  if (const Value constant = x.builder().resized_constant(x, result.dims); constant.defined()) return constant;
  if (const auto* from = origin(x, Op::kTranspose)) {
    Dims both;
    for (int64_t axis : axes) both.push_back(from->axes[static_cast<size_t>(axis)]);
    return transpose(from->operand, both);
  }
  if (const auto* from = origin(x, Op::kBroadcast)) {
    Dims moved;
    for (int64_t axis : from->axes) moved.push_back(place_of(axes, axis));
    return broadcast_in_dim(from->operand, result.dims, moved);
  }
  std::string text = "stablehlo.transpose";
  append_operands(text, {&x, 1});
  text += ", dims = " + list(axes) + " : (";
  append_type(text, x.type());
  text += ") -> ";
  append_type(text, result);
  const Value transposed = x.builder().emit_one(std::move(text), result);
  x.builder().note_origin(transposed, {Op::kTranspose, x, axes});
  return transposed;
}

Value slice(Value x, const Dims& start, const Dims& limit, const Dims& step) {
  check(start.size() == x.rank() && limit.size() == x.rank() && step.size() == x.rank(), "slice",
        "one start, limit and step for every dim", {x});
  TensorType result{x.dtype(), {}};
  for (size_t i = 0; i < x.rank(); ++i) {
    check(start[i] >= 0 && start[i] <= limit[i] && limit[i] <= x.dim(i) && step[i] > 0, "slice", "out of bounds", {x});
    result.dims.push_back((limit[i] - start[i] + step[i] - 1) / step[i]);
  }
  if (result.dims == x.dims()) return x;
  if (const Value constant = x.builder().resized_constant(x, result.dims); constant.defined()) return constant;
  return emit_generic_one(
      "slice", {x},
      attribute("start_indices", start) + ", " + attribute("limit_indices", limit) + ", " + attribute("strides", step),
      result);
}

Value dynamic_slice(Value x, std::span<const Value> start, const Dims& sizes) {
  const auto operands = with_starts({x}, start, "dynamic_slice");
  check(sizes.size() == x.rank(), "dynamic_slice", "one size for every dim", operands);
  for (size_t i = 0; i < x.rank(); ++i) {
    check(sizes[i] >= 0 && sizes[i] <= x.dim(i), "dynamic_slice", "a size exceeds the operand's", operands);
  }
  const TensorType result{x.dtype(), sizes};
  return emit_generic(x.builder(), "dynamic_slice", operands, attribute("slice_sizes", sizes), {&result, 1})[0];
}

Value dynamic_update_slice(Value x, Value update, std::span<const Value> start) {
  const auto operands = with_starts({x, update}, start, "dynamic_update_slice");
  check(update.dtype() == x.dtype() && update.rank() == x.rank(), "dynamic_update_slice",
        "the update must have the operand's element type and rank", operands);
  for (size_t i = 0; i < x.rank(); ++i) {
    check(update.dim(i) <= x.dim(i), "dynamic_update_slice", "the update exceeds the operand", operands);
  }
  const TensorType result = x.type();
  return emit_generic(x.builder(), "dynamic_update_slice", operands, "", {&result, 1})[0];
}

Value concatenate(std::span<const Value> parts, int64_t axis) {
  check(!parts.empty(), "concatenate", "needs an operand", parts);
  if (parts.size() == 1) return parts[0];
  TensorType result = parts[0].type();
  check(axis >= 0 && axis < static_cast<int64_t>(result.rank()), "concatenate", "axis out of range", parts);
  const auto at = static_cast<size_t>(axis);
  result.dims[at] = 0;
  for (Value part : parts) {
    bool matches = part.dtype() == result.dtype && part.rank() == result.rank();
    for (size_t i = 0; matches && i < result.rank(); ++i) matches = i == at || part.dim(i) == result.dims[i];
    check(matches, "concatenate", "operands differ outside the axis", parts);
    result.dims[at] += part.dim(at);
  }
  return emit_generic(parts[0].builder(), "concatenate", parts, "dimension = " + std::to_string(axis) + " : i64",
                      {&result, 1})[0];
}

Value pad(Value x, Value value, const Dims& low, const Dims& high, const Dims& interior) {
  check(value.rank() == 0 && value.dtype() == x.dtype(), "pad", "the padding value must be 0-d of the same type",
        {x, value});
  check(low.size() == x.rank() && high.size() == x.rank() && interior.size() == x.rank(), "pad",
        "one low, high and interior for every dim", {x, value});
  TensorType result{x.dtype(), {}};
  for (size_t i = 0; i < x.rank(); ++i) {
    const int64_t size = x.dim(i) + low[i] + high[i] + std::max<int64_t>(x.dim(i) - 1, 0) * interior[i];
    check(size >= 0 && interior[i] >= 0, "pad", "a negative size", {x, value});
    result.dims.push_back(size);
  }
  const Dims none(x.rank(), 0);
  if (low == none && high == none && interior == none) return x;
  return emit_generic_one("pad", {x, value},
                          attribute("edge_padding_low", low) + ", " + attribute("edge_padding_high", high) + ", " +
                              attribute("interior_padding", interior),
                          result);
}

Value reverse(Value x, const Dims& axes) {
  check(distinct_axes(axes, x.rank()), "reverse", "axes must be distinct and in range", {x});
  if (axes.empty()) return x;
  return emit_generic_one("reverse", {x}, attribute("dimensions", axes), x.type());
}

Value iota(Builder& builder, const TensorType& type, int64_t axis) {
  check(axis >= 0 && axis < static_cast<int64_t>(type.rank()) && type.dtype != DType::kBool, "iota",
        "axis out of range or bool", {});
  std::string text = "stablehlo.iota dim = ";
  append_integer(text, axis);
  text += " : ";
  append_type(text, type);
  return builder.emit_one(std::move(text), type);
}

Value gather(Value x, Value indices, const GatherDims& dims, const Dims& slice_sizes, bool indices_are_sorted) {
  check(is_integer(indices.dtype()), "gather", "indices must be integers", {x, indices});
  check(slice_sizes.size() == x.rank(), "gather", "one slice size for every operand dim", {x, indices});
  // Sizes of the offset dims: the slice without its collapsed and batching dims.
  Dims window;
  for (size_t i = 0; i < x.rank(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    const auto contains = [axis](const Dims& list) { return std::find(list.begin(), list.end(), axis) != list.end(); };
    if (!contains(dims.collapsed_slice_dims) && !contains(dims.operand_batching_dims)) window.push_back(slice_sizes[i]);
    check(slice_sizes[i] >= 0 && slice_sizes[i] <= x.dim(i), "gather", "a slice exceeds the operand", {x, indices});
  }
  check(window.size() == dims.offset_dims.size(), "gather", "offset_dims do not fit the slice", {x, indices});
  Dims batch = indices.dims();
  if (dims.index_vector_dim < static_cast<int64_t>(batch.size()))
    batch.erase(static_cast<size_t>(dims.index_vector_dim));
  TensorType result{x.dtype(), Dims(batch.size() + window.size(), 0)};
  size_t from_batch = 0, from_window = 0;
  for (size_t i = 0; i < result.rank(); ++i) {
    const bool offset = from_window < window.size() && dims.offset_dims[from_window] == static_cast<int64_t>(i);
    check(offset || from_batch < batch.size(), "gather", "offset_dims must ascend within the result", {x, indices});
    result.dims[i] = offset ? window[from_window++] : batch[from_batch++];
  }

  std::string numbers;
  append_dims_field(numbers, "offset_dims", dims.offset_dims);
  append_dims_field(numbers, "collapsed_slice_dims", dims.collapsed_slice_dims);
  append_dims_field(numbers, "operand_batching_dims", dims.operand_batching_dims);
  append_dims_field(numbers, "start_indices_batching_dims", dims.start_indices_batching_dims);
  append_dims_field(numbers, "start_index_map", dims.start_index_map);
  numbers += "index_vector_dim = " + std::to_string(dims.index_vector_dim);
  return emit_generic_one("gather", {x, indices},
                          "dimension_numbers = #stablehlo.gather<" + numbers +
                              ">, slice_sizes = " + i64_array(slice_sizes) +
                              ", indices_are_sorted = " + (indices_are_sorted ? "true" : "false"),
                          result);
}

Value scatter(Value x, Value indices, Value updates, const ScatterDims& dims, const Region& combine,
              bool indices_are_sorted, bool unique_indices) {
  check(is_integer(indices.dtype()), "scatter", "indices must be integers", {x, indices, updates});
  check(updates.dtype() == x.dtype(), "scatter", "updates must have the operand's element type", {x, indices, updates});
  check(dims.update_window_dims.size() + dims.inserted_window_dims.size() + dims.input_batching_dims.size() == x.rank(),
        "scatter", "window dims do not fit the operand", {x, indices, updates});
  std::string numbers;
  append_dims_field(numbers, "update_window_dims", dims.update_window_dims);
  append_dims_field(numbers, "inserted_window_dims", dims.inserted_window_dims);
  append_dims_field(numbers, "input_batching_dims", dims.input_batching_dims);
  append_dims_field(numbers, "scatter_indices_batching_dims", dims.scatter_indices_batching_dims);
  append_dims_field(numbers, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims);
  numbers += "index_vector_dim = " + std::to_string(dims.index_vector_dim);
  const auto arguments = reducer_arguments({&x, 1});
  const std::string region = x.builder().region(arguments, combine);
  return emit_generic_one("scatter", {x, indices, updates},
                          "scatter_dimension_numbers = #stablehlo.scatter<" + numbers +
                              ">, indices_are_sorted = " + (indices_are_sorted ? "true" : "false") +
                              ", unique_indices = " + (unique_indices ? "true" : "false"),
                          x.type(), region);
}

}  // namespace tpu::stablehlo
