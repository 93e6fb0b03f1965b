// Advanced indexing with several index tensors (index, index_put), flat indexing (take, put), and the
// operators around boolean masks whose result has a static shape.

#include <algorithm>

#include "lowering/data_dependent.h"
#include "lowering/indexing.h"

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::GatherDims;
using stablehlo::Reducer;
using stablehlo::Region;
using stablehlo::ScatterDims;

namespace {

using Results = std::vector<Value>;

Value flat(Value x) { return reshape(x, {x.type().numel()}); }

/// For each element of flat `mask`, how many true ones stand before it.
Value true_before(Value mask) {
  const Value ones = convert(mask, index_dtype(mask.dim(0)));
  return subtract(running_sum(ones), ones);
}

/// The index tensors of one call: which axes they address, and where the dims they broadcast to stand in the
/// result. Adjacent axes keep their place; axes that a slice separates move their dims to the front.
struct Selection {
  Dims axes;                 // ascending
  std::vector<Value> index;  // one per axis, in range, broadcast to `shape`
  Dims shape;
  int64_t place = 0;  // first dim of `shape` in the result
};

Dims broadcast_shape(std::span<const Value> values) {
  Dims shape;
  for (const Value& v : values) {
    while (shape.size() < v.rank()) shape.insert(0, 1);
    const size_t offset = shape.size() - v.rank();
    for (size_t i = 0; i < v.rank(); ++i) {
      if (v.dim(i) != 1) shape[offset + i] = v.dim(i);
    }
  }
  return shape;
}

Selection selection_of(const OpCall& call, Value x, bool checked) {
  const auto given = call.optional_tensors(1);
  Selection s;
  std::vector<Value> indices;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i] || !given[i]->defined()) continue;
    s.axes.push_back(static_cast<int64_t>(i));
    indices.push_back(*given[i]);
  }
  s.shape = broadcast_shape(indices);
  const bool adjacent = s.axes.empty() || s.axes.back() - s.axes.front() + 1 == static_cast<int64_t>(s.axes.size());
  s.place = adjacent && !s.axes.empty() ? s.axes.front() : 0;
  for (size_t k = 0; k < indices.size(); ++k) {
    // Without elements nothing is read: a bad index in a tensor that broadcasts to nothing is no error.
    const int64_t size = x.dim(s.axes[k]);
    const bool check = checked && product(s.shape) > 0;
    const IndexRule rule{.wrap_negative = true, .present = call.present_size(0, s.axes[k])};
    Value index =
        check ? checked_index(call, indices[k], size, s.axes[k], rule) : convert(indices[k], index_dtype(size));
    s.index.push_back(broadcast_to(index, s.shape));
  }
  return s;
}

/// Merges adjacent indexed axes of `x` into one, so that a single position addresses an element: fewer index
/// columns to read, and the form that compilers gather from fastest.
void merge_adjacent(Value& x, Selection& s) {
  const auto count = static_cast<int64_t>(s.axes.size());
  if (count < 2 || s.axes.back() - s.axes.front() + 1 != count) return;
  Dims sizes;
  int64_t merged = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(x.rank()); ++i) {
    if (i < s.axes.front() || i > s.axes.back()) {
      sizes.push_back(x.dim(i));
      continue;
    }
    merged *= x.dim(i);
    if (i == s.axes.back()) sizes.push_back(merged);
  }
  const DType dtype = index_dtype(merged);
  Value position = convert(s.index[0], dtype);
  for (int64_t k = 1; k < count; ++k) {
    const Value stride = full_like(position, static_cast<double>(x.dim(s.axes[k])));
    position = add(multiply(position, stride), convert(s.index[k], dtype));
  }
  x = reshape(x, sizes);
  s.axes = {s.axes.front()};
  s.index = {position};
}

/// Index tensors as one tensor of vectors; dim `shape.size()` holds the coordinates.
Value index_vectors(const Selection& s) {
  if (s.index.size() == 1) return s.index[0];
  DType dtype = DType::kS32;
  for (const Value& v : s.index) {
    if (v.dtype() == DType::kS64) dtype = DType::kS64;
  }
  std::vector<Value> columns;
  for (const Value& v : s.index) columns.push_back(unsqueeze(convert(v, dtype), static_cast<int64_t>(s.shape.size())));
  return concatenate(columns, static_cast<int64_t>(s.shape.size()));
}

/// Dims of the result that come from `x` rather than from the indices.
Dims window_dims(const Selection& s, size_t result_rank) {
  Dims dims;
  const auto length = static_cast<int64_t>(s.shape.size());
  for (int64_t i = 0; i < static_cast<int64_t>(result_rank); ++i) {
    if (i < s.place || i >= s.place + length) dims.push_back(i);
  }
  return dims;
}

/// Position in the index list of its only entry when that is a boolean mask; -1 otherwise.
int64_t lone_mask(const OpCall& call) {
  const auto given = call.optional_tensors(1);
  int64_t found = -1;
  int count = 0;
  bool any_mask = false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i] || !given[i]->defined()) continue;
    ++count;
    any_mask |= given[i]->dtype() == DType::kBool;
    found = static_cast<int64_t>(i);
  }
  if (any_mask && count > 1) {
    throw Error(Code::kNotImplemented, std::string(call.name()) + ": masks beside other indices must be converted");
  }
  return any_mask ? found : -1;
}

Results lower_index_with(const OpCall& call, bool checked) {
  Value x = call.tensor(0);
  if (lone_mask(call) >= 0) {
    throw Error(Code::kNotImplemented, "index: the size of the result depends on the mask; convert it to positions");
  }
  Selection s = selection_of(call, x, checked);
  if (s.axes.empty()) return {x};
  const TensorType& type = call.result_type();
  if (type.numel() == 0) {
    return {convert_like_torch(call.builder().constant(int64_t{0}, {DType::kS32, type.dims}), type.dtype)};
  }
  merge_adjacent(x, s);
  GatherDims dims;
  dims.offset_dims = window_dims(s, type.dims.size());
  dims.collapsed_slice_dims = s.axes;
  dims.start_index_map = s.axes;
  dims.index_vector_dim = static_cast<int64_t>(s.shape.size());
  Dims sizes = x.dims();
  for (const int64_t axis : s.axes) sizes[axis] = 1;
  return {gather(x, index_vectors(s), dims, sizes)};
}

Results lower_index(const OpCall& call) { return lower_index_with(call, true); }
Results lower_unsafe_index(const OpCall& call) { return lower_index_with(call, false); }

Region put_region(bool accumulate) {
  return [accumulate](std::span<const Value> a) { return std::vector<Value>{accumulate ? add(a[0], a[1]) : a[1]}; };
}

/// Sizes of `x[indices]`.
Dims selected_sizes(Value x, const Selection& s) {
  Dims sizes;
  size_t k = 0;
  for (size_t i = 0; i < x.rank(); ++i) {
    if (k < s.axes.size() && s.axes[k] == static_cast<int64_t>(i)) {
      ++k;
    } else {
      sizes.push_back(x.dim(i));
    }
  }
  for (size_t i = 0; i < s.shape.size(); ++i) sizes.insert(static_cast<size_t>(s.place) + i, s.shape[i]);
  return sizes;
}

/// x[:, mask] = values, without converting the mask to positions, whose number is not known: each true element
/// takes the value whose number is the count of true ones before it.
Results put_through_mask(const OpCall& call, int64_t axis, bool accumulate) {
  const TensorType& type = call.result_type();
  const DType dtype = accumulate ? compute_type(type.dtype) : type.dtype;
  const Value x = convert_like_torch(call.tensor(0), dtype);
  const Value mask = call.optional_tensors(1)[static_cast<size_t>(axis)].value();
  if (x.type().numel() == 0) return {call.tensor(0)};
  Value values = call.operand(2, dtype);
  // x with the mask's dims as one; values with `count` (or 1) there.
  const Value flags = flat(mask);
  const auto middle = static_cast<size_t>(axis);
  Dims full(type.dims.begin(), type.dims.begin() + axis);
  full.push_back(flags.dim(0));
  for (size_t i = middle + mask.rank(); i < type.dims.size(); ++i) full.push_back(type.dims[i]);
  Dims wanted = values.dims();
  while (wanted.size() < full.size()) wanted.insert(0, 1);
  const int64_t count = wanted[middle];
  wanted = full;
  wanted[middle] = count;
  values = broadcast_to(values, wanted);
  if (count == 1) {
    values = broadcast_to(values, full);
  } else {
    const Value total = count_nonzero(flags);
    call.check(compare(total, scalar(call.builder(), count, DType::kS64), Compare::kNe), Code::kIndex,
               "shape mismatch: value tensor of " + std::to_string(count) +
                   " elements cannot be broadcast to the number of true elements of the mask");
    if (count == 0) return {call.tensor(0)};
    values = take_slices(values, true_before(flags), axis);
  }
  const Value chosen = broadcast_in_dim(flags, full, {axis});
  const Value grouped = reshape(x, full);
  const Value updated = select(chosen, accumulate ? add(grouped, values) : values, grouped);
  return {reshape(convert_like_torch(updated, type.dtype), type.dims)};
}

Results lower_index_put_with(const OpCall& call, bool checked) {
  if (const int64_t axis = lone_mask(call); axis >= 0) {
    return put_through_mask(call, axis, call.boolean_or(3, false));
  }
  const TensorType& type = call.result_type();
  const bool accumulate = call.boolean_or(3, false);
  // Half-precision sums of many duplicates would drift: add in float32, round once.
  const DType dtype = accumulate ? compute_type(type.dtype) : type.dtype;
  Value x = convert_like_torch(call.tensor(0), dtype);
  Selection s = selection_of(call, x, checked);
  const Dims sizes = selected_sizes(x, s);
  const Value values = broadcast_to(call.operand(2, dtype), sizes);
  if (s.axes.empty()) return {convert_like_torch(accumulate ? add(x, values) : values, type.dtype)};
  if (product(sizes) == 0) return {call.tensor(0)};
  merge_adjacent(x, s);
  ScatterDims dims;
  dims.update_window_dims = window_dims(s, sizes.size());
  dims.inserted_window_dims = s.axes;
  dims.scatter_dims_to_operand_dims = s.axes;
  dims.index_vector_dim = static_cast<int64_t>(s.shape.size());
  const Value changed = scatter(x, index_vectors(s), values, dims, put_region(accumulate));
  return {reshape(convert_like_torch(changed, type.dtype), type.dims)};
}

Results lower_index_put(const OpCall& call) { return lower_index_put_with(call, true); }
Results lower_unsafe_index_put(const OpCall& call) { return lower_index_put_with(call, false); }

// ---- flat positions

IndexRule flat_rule(int64_t size) {
  return {.wrap_negative = true,
          .message = "out of range: tried to access an index on a tensor of " + std::to_string(size) + " elements."};
}

Results lower_take(const OpCall& call) {
  const Value x = flat(call.tensor(0));
  const Value index = call.tensor(1);
  if (index.type().numel() == 0) return {convert_like_torch(index, call.result_type().dtype)};
  return {take_slices(x, checked_index(call, index, x.dim(0), 0, flat_rule(x.dim(0))), 0)};
}

Results lower_put(const OpCall& call) {
  const TensorType& type = call.result_type();
  const bool accumulate = call.boolean_or(3, false);
  const DType dtype = accumulate ? compute_type(type.dtype) : type.dtype;
  const Value x = flat(convert_like_torch(call.tensor(0), dtype));
  const Value index = flat(call.tensor(1));
  if (index.dim(0) == 0) return {call.tensor(0)};
  const Value positions = checked_index(call, index, x.dim(0), 0, flat_rule(x.dim(0)));
  const Value source = flat(convert_like_torch(call.tensor(2), dtype));
  const Combine combine = accumulate ? Combine::kAdd : Combine::kReplace;
  const Value changed = scatter_slices(x, positions, source, 0, combine);
  return {reshape(convert_like_torch(changed, type.dtype), type.dims)};
}

// ---- masks

Results lower_masked_scatter(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (call.dtype(1) != DType::kBool) {
    throw Error(Code::kInvalidArgument, "masked_scatter_ only supports boolean masks, but got mask with dtype " +
                                            std::string(torch_name(call.dtype(1))));
  }
  if (type.numel() == 0) return {broadcast_to(call.tensor(0), type.dims)};
  const Value x = flat(broadcast_to(call.tensor(0), type.dims));
  const Value mask = flat(convert_like_torch(broadcast_to(call.tensor(1), type.dims), DType::kBool));
  const Value source = flat(call.tensor(2));
  const Value order = true_before(mask);
  const Value beyond = compare(order, full_like(order, static_cast<double>(source.dim(0))), Compare::kGe);
  call.check(any_true(bit_and(mask, beyond)), Code::kInvalidArgument,
             "masked_scatter: expected the number of elements of source to be at least the number of ones in mask");
  if (source.dim(0) == 0) return {reshape(x, type.dims)};
  return {reshape(select(mask, take_slices(source, order, 0), x), type.dims)};
}

/// Gradient of masked_scatter's source: grad_output's masked elements in order, then zeros.
Results lower_masked_scatter_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  const Value grad = call.tensor(0);
  const Value zeros = call.builder().constant(0.0, {type.dtype, {type.numel()}});
  if (grad.type().numel() == 0) return {reshape(zeros, type.dims)};
  const Value mask = flat(convert_like_torch(broadcast_to(call.tensor(1), grad.dims()), DType::kBool));
  const Value order = true_before(mask);
  // Elements outside the mask go to a position that does not exist, where a scatter drops them.
  const DType dtype = index_dtype(std::max(mask.dim(0), type.numel()) + 1);
  const Value wide = convert(order, dtype);
  const Value target = select(mask, wide, full_like(wide, static_cast<double>(type.numel())));
  return {reshape(scatter_slices(zeros, target, flat(grad), 0, Combine::kReplace), type.dims)};
}

Results lower_nonzero_static(const OpCall& call) {
  const TensorType& type = call.result_type();
  const int64_t capacity = type.dims[0];
  const Value mask = convert_like_torch(call.tensor(0), DType::kBool);
  const Value positions = nonzero_padded(mask, capacity);
  const int64_t fill = call.integer_or(2, -1);
  const Value row = stablehlo::iota(call.builder(), {DType::kS64, type.dims}, 0);
  const Value found = compare(row, broadcast_to(count_nonzero(mask), type.dims), Compare::kLt);
  return {select(found, positions, call.builder().constant(fill, type))};
}

const Row kRows[] = {
    {"index.Tensor", lower_index},
    {"_unsafe_index.Tensor", lower_unsafe_index},
    {"index_put", lower_index_put},
    {"_unsafe_index_put", lower_unsafe_index_put},
    {.name = "take", .lower = lower_take, .separate_out = true},
    {"put_", lower_put},
    {"masked_scatter", lower_masked_scatter},
    {"masked_scatter_backward", lower_masked_scatter_backward},
    {"nonzero_static", lower_nonzero_static},
};

}  // namespace

Value count_nonzero(Value mask) { return reduce(convert(mask, DType::kS64), Reducer::kAdd, iota(mask.rank())); }

Value nonzero_padded(Value mask, int64_t capacity) {
  const Dims sizes = mask.dims();
  const auto rank = static_cast<int64_t>(sizes.size());
  const Value flags = flat(mask);
  const DType dtype = index_dtype(std::max(flags.dim(0), capacity) + 1);
  if (flags.dim(0) == 0 || capacity == 0 || rank == 0) {
    return mask.builder().constant(int64_t{0}, {DType::kS64, {capacity, rank}});
  }
  const Value order = convert(true_before(flags), dtype);
  const Value target = select(flags, order, full_like(order, static_cast<double>(capacity)));
  const Value places = stablehlo::iota(mask.builder(), {dtype, flags.dims()}, 0);
  const Value last = full_like(places, static_cast<double>(flags.dim(0) - 1));
  const Value first = reduce(select(flags, places, last), Reducer::kMinimum, {0});
  Value rest = scatter_slices(broadcast_to(first, {capacity}), target, places, 0, Combine::kReplace);
  std::vector<Value> columns(sizes.size());
  for (int64_t axis = rank - 1; axis >= 0; --axis) {
    const Value size = full_like(rest, static_cast<double>(sizes[axis]));
    const Value coordinate = axis == 0 ? rest : remainder(rest, size);
    columns[axis] = unsqueeze(convert(coordinate, DType::kS64), 1);
    rest = divide(rest, size);
  }
  return rank == 1 ? columns[0] : concatenate(columns, 1);
}

Value nonzero_columns(Value mask, int64_t capacity) {
  const Value table = nonzero_padded(mask, capacity);
  const int64_t rank = table.dim(1);
  const Value columns = flat(stablehlo::transpose(table, {1, 0}));
  if (rank <= 1 || columns.dim(0) == 0) return columns;
  const DType dtype = index_dtype(columns.dim(0));
  const Value place = stablehlo::iota(mask.builder(), {dtype, columns.dims()}, 0);
  const Value total = convert(count_nonzero(mask), dtype);
  const Value count = broadcast_to(maximum(total, full_like(total, 1)), columns.dims());
  const Value column = minimum(divide(place, count), full_like(place, static_cast<double>(rank - 1)));
  const Value start = multiply(column, full_like(place, static_cast<double>(capacity)));
  return take_slices(columns, add(start, remainder(place, count)), 0);
}

std::span<const Row> advanced_indexing_rows() { return kRows; }

}  // namespace tpu::lowering
