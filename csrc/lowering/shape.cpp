// Joining, repeating and rearranging elements: cat, flip, roll, triangles, diagonals, patches.

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {
namespace {

namespace hlo = stablehlo;
using Values = std::vector<Value>;

// The part [start, limit) of one axis.
Value slice_axis(Value x, size_t axis, int64_t start, int64_t limit, int64_t step = 1) {
  Dims starts(x.rank(), 0), steps(x.rank(), 1), limits = x.dims();
  starts[axis] = start;
  limits[axis] = limit;
  steps[axis] = step;
  return hlo::slice(x, starts, limits, steps);
}

// `x` with zeros around and between its elements along one axis; negative amounts crop.
Value pad_axis(Value x, size_t axis, int64_t low, int64_t high, int64_t interior = 0) {
  Dims lows(x.rank(), 0), highs(x.rank(), 0), interiors(x.rank(), 0);
  lows[axis] = low;
  highs[axis] = high;
  interiors[axis] = interior;
  return hlo::pad(x, scalar(x.builder(), int64_t{0}, x.dtype()), lows, highs, interiors);
}

Value zeros(const OpCall& call) { return call.builder().constant(int64_t{0}, call.result_type()); }

// ---- joining

// PyTorch lets a 1-d tensor without elements join tensors of any rank.
bool is_skipped(Value part, size_t rank) { return part.rank() == 1 && part.dim(0) == 0 && rank != 1; }

// Parts whose sizes along `axis` only the device knows: each is written over what the one before left behind its end.
Value cat_bounded(const OpCall& call, const Values& parts, const std::vector<size_t>& places, int64_t axis) {
  Builder& builder = call.builder();
  const auto at = static_cast<size_t>(axis);
  TensorType room = call.result_type();
  for (Value part : parts) room.dims[at] += part.dim(at);  // a write that reached over the end would be moved
  Value result = builder.constant(int64_t{0}, room);
  Value position = scalar(builder, int64_t{0}, DType::kS64);
  for (size_t k = 0; k < parts.size(); ++k) {
    std::vector<Value> starts(room.rank(), scalar(builder, int64_t{0}, DType::kS64));
    starts[at] = position;
    result = hlo::dynamic_update_slice(result, parts[k], starts);
    const auto size = call.present_size(0, axis, places[k]);
    position = hlo::add(position, size ? *size : scalar(builder, parts[k].dim(at), DType::kS64));
  }
  return slice_axis(result, at, 0, call.result_type().dims[at]);
}

Values cat(const OpCall& call) {
  const TensorType& type = call.result_type();
  Values parts;
  std::vector<size_t> places;  // of the parts, in the list
  const std::vector<Value> given = call.tensors(0);
  for (size_t k = 0; k < given.size(); ++k) {
    if (is_skipped(given[k], type.rank())) continue;
    parts.push_back(convert_like_torch(given[k], type.dtype));
    places.push_back(k);
  }
  if (parts.empty()) return {zeros(call)};
  const int64_t axis = wrap_axis(call.integer_or(1, 0), type.rank());
  bool bounded = false;
  for (size_t place : places) bounded |= call.present_size(0, axis, place).has_value();
  return {bounded ? cat_bounded(call, parts, places, axis) : hlo::concatenate(parts, axis)};
}

Values stack(const OpCall& call) {
  const TensorType& type = call.result_type();
  const int64_t axis = wrap_axis(call.integer_or(1, 0), type.rank());
  Values parts;
  for (Value part : call.tensors(0)) parts.push_back(unsqueeze(convert_like_torch(part, type.dtype), axis));
  return {hlo::concatenate(parts, axis)};
}

Values block_diag(const OpCall& call) {
  const TensorType& type = call.result_type();
  Values rows;
  int64_t before = 0;
  for (Value part : call.tensors(0)) {
    part = convert_like_torch(part, type.dtype);
    const Value block = part.rank() == 2 ? part : hlo::reshape(part, {1, part.type().numel()});
    rows.push_back(pad_axis(block, 1, before, type.dims[1] - before - block.dim(1)));
    before += block.dim(1);
  }
  if (rows.empty()) return {zeros(call)};
  return {hlo::concatenate(rows, 0)};
}

// ---- repeating and moving

Values repeat(const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims repeats = call.ints(1);
  // Every dim becomes a pair (copies, size), which the result merges again.
  Dims pairs, axes;
  const size_t added = repeats.size() - x.rank();
  for (size_t i = 0; i < repeats.size(); ++i) {
    pairs.push_back(repeats[i]);
    if (i < added) continue;
    axes.push_back(static_cast<int64_t>(pairs.size()));
    pairs.push_back(x.dim(i - added));
  }
  return {hlo::reshape(hlo::broadcast_in_dim(x, pairs, axes), call.result_type().dims)};
}

Values flip(const OpCall& call) {
  const Value x = call.tensor(0);
  Dims axes;
  if (x.rank() > 0) {
    for (int64_t axis : call.ints(1)) axes.push_back(wrap_axis(axis, x.rank()));
  }
  return {hlo::reverse(x, axes)};
}

Value roll_axis(Value x, size_t axis, int64_t shift) {
  const int64_t size = x.dim(axis);
  if (size == 0) return x;
  const int64_t cut = size - ((shift % size) + size) % size;
  if (cut == size) return x;
  const Value parts[] = {slice_axis(x, axis, cut, size), slice_axis(x, axis, 0, cut)};
  return hlo::concatenate(parts, static_cast<int64_t>(axis));
}

Values roll(const OpCall& call) {
  Value x = call.tensor(0);
  const Dims shifts = call.ints(1), axes = call.ints_or(2, {});
  if (axes.empty()) {  // one shift of the flattened tensor
    const Dims sizes = x.dims();
    return {hlo::reshape(roll_axis(hlo::reshape(x, {x.type().numel()}), 0, shifts[0]), sizes)};
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    x = roll_axis(x, static_cast<size_t>(wrap_axis(axes[i], x.rank())), shifts[i]);
  }
  return {x};
}

// Splits and permutes dims, the common form of the shuffles: reshape to `split`, transpose, reshape.
Value rearrange(Value x, const Dims& split, const Dims& order, const Dims& sizes) {
  return hlo::reshape(hlo::transpose(hlo::reshape(x, split), order), sizes);
}

// Number and sizes of the leading dims before the last `kept`.
Dims leading(Value x, size_t kept) {
  return Dims(x.dims().begin(), x.dims().end() - static_cast<std::ptrdiff_t>(kept));
}

void append(Dims& dims, std::initializer_list<int64_t> more) {
  for (int64_t d : more) dims.push_back(d);
}

Values pixel_shuffle(const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t r = call.integer(1);
  const size_t n = x.rank() - 3;
  const auto b = static_cast<int64_t>(n);
  Dims split = leading(x, 3), order = tpu::iota(n);
  append(split, {x.dim(n) / (r * r), r, r, x.dim(n + 1), x.dim(n + 2)});
  append(order, {b, b + 3, b + 1, b + 4, b + 2});
  return {rearrange(x, split, order, call.result_type().dims)};
}

Values pixel_unshuffle(const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t r = call.integer(1);
  const size_t n = x.rank() - 3;
  const auto b = static_cast<int64_t>(n);
  Dims split = leading(x, 3), order = tpu::iota(n);
  append(split, {x.dim(n), x.dim(n + 1) / r, r, x.dim(n + 2) / r, r});
  append(order, {b, b + 2, b + 4, b + 1, b + 3});
  return {rearrange(x, split, order, call.result_type().dims)};
}

Values channel_shuffle(const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t groups = call.integer(1);
  Dims split{x.dim(0), groups, x.dim(1) / groups}, order{0, 2, 1};
  for (size_t i = 2; i < x.rank(); ++i) {
    split.push_back(x.dim(i));
    order.push_back(static_cast<int64_t>(i) + 1);
  }
  return {rearrange(x, split, order, x.dims())};
}

// ---- triangles and diagonals

// i1[rows, columns]: column - row compared with `diagonal`.
Value diagonal_mask(Builder& builder, int64_t rows, int64_t columns, int64_t diagonal, hlo::Compare direction) {
  const TensorType type{DType::kS32, {rows, columns}};
  const Value offset = hlo::subtract(hlo::iota(builder, type, 1), hlo::iota(builder, type, 0));
  // Beyond the corners nothing changes, so the diagonal always fits the index type.
  const int64_t bounded = std::clamp(diagonal, -rows - 1, columns + 1);
  return hlo::compare(offset, builder.constant(bounded, type), direction);
}

Values triangle(const OpCall& call, hlo::Compare direction) {
  const Value x = call.tensor(0);
  const size_t n = x.rank();
  const Value mask = diagonal_mask(call.builder(), x.dim(n - 2), x.dim(n - 1), call.integer_or(1, 0), direction);
  return {hlo::select(broadcast_to(mask, x.dims()), x, zeros(call))};
}

Values tril(const OpCall& call) { return triangle(call, hlo::Compare::kLe); }
Values triu(const OpCall& call) { return triangle(call, hlo::Compare::kGe); }

// Order that moves the last two dims of a rank `rank` value to positions `first` and `second`.
Dims matrix_order(size_t rank, int64_t first, int64_t second) {
  Dims order(rank, -1);
  order[static_cast<size_t>(first)] = static_cast<int64_t>(rank) - 2;
  order[static_cast<size_t>(second)] = static_cast<int64_t>(rank) - 1;
  int64_t next = 0;
  for (int64_t& axis : order) {
    if (axis < 0) axis = next++;
  }
  return order;
}

struct Diagonal {
  Value values;  // [..., rows, columns], the last dim of x spread along the diagonal; other elements undefined
  Value mask;    // same dims, true on the diagonal
};

// `x` as diagonal number `offset` of matrices, whose dims are then moved to `first` and `second`.
Diagonal embed_diagonal(Value x, int64_t rows, int64_t columns, int64_t offset, int64_t first, int64_t second) {
  const size_t batch = x.rank() - 1;
  // An element's place along the diagonal is its row when the diagonal starts in the first row, else its column.
  const bool by_row = offset >= 0;
  const Value padded = pad_axis(x, batch, 0, (by_row ? rows : columns) - x.dim(batch));
  Dims sizes = leading(x, 1), axes = tpu::iota(batch);
  append(sizes, {rows, columns});
  axes.push_back(static_cast<int64_t>(by_row ? batch : batch + 1));
  const Dims order = matrix_order(batch + 2, first, second);
  const Value mask = broadcast_to(diagonal_mask(x.builder(), rows, columns, offset, hlo::Compare::kEq), sizes);
  return {hlo::transpose(hlo::broadcast_in_dim(padded, sizes, axes), order), hlo::transpose(mask, order)};
}

Values diag_embed(const OpCall& call) {
  const Value x = call.tensor(0);
  const TensorType& type = call.result_type();
  const int64_t first = wrap_axis(call.integer_or(2, -2), type.rank());
  const int64_t second = wrap_axis(call.integer_or(3, -1), type.rank());
  const int64_t size = type.dims[static_cast<size_t>(first)];
  const Diagonal d = embed_diagonal(x, size, size, call.integer_or(1, 0), first, second);
  return {hlo::select(d.mask, d.values, zeros(call))};
}

// diagonal_backward(grad, sizes, offset, dim1, dim2)
Values diagonal_backward(const OpCall& call) {
  const Dims sizes = call.ints(1);
  const int64_t first = wrap_axis(call.integer(3), sizes.size()), second = wrap_axis(call.integer(4), sizes.size());
  const Diagonal d = embed_diagonal(call.tensor(0), sizes[static_cast<size_t>(first)],
                                    sizes[static_cast<size_t>(second)], call.integer(2), first, second);
  return {hlo::select(d.mask, d.values, zeros(call))};
}

// ---- patches

// Windows along one axis: [..., n, ...] -> [..., taps, positions, ...].
Value unfold_axis(Value x, size_t axis, int64_t taps, int64_t positions, int64_t stride, int64_t dilation) {
  Values parts;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t start = tap * dilation;
    const Value part = slice_axis(x, axis, start, start + (positions - 1) * stride + 1, stride);
    parts.push_back(unsqueeze(part, static_cast<int64_t>(axis)));
  }
  return hlo::concatenate(parts, static_cast<int64_t>(axis));
}

// The transpose of unfold_axis: overlapping windows are added. [..., taps, positions, ...] -> [..., size, ...].
Value fold_axis(Value x, size_t axis, int64_t size, int64_t stride, int64_t dilation) {
  const int64_t taps = x.dim(axis), positions = x.dim(axis + 1);
  const int64_t span = positions == 0 ? 0 : (positions - 1) * stride + 1;
  Value total;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const Value part = squeeze(slice_axis(x, axis, tap, tap + 1), static_cast<int64_t>(axis));
    const int64_t start = tap * dilation;
    const Value placed = pad_axis(part, axis, start, size - start - span, stride - 1);
    total = total.defined() ? hlo::add(total, placed) : placed;
  }
  return total;
}

struct Patches {
  int64_t kernel[2], dilation[2], padding[2], stride[2];
  int64_t positions(int axis, int64_t size) const {
    return (size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) / stride[axis] + 1;
  }
};

// Arguments kernel_size, dilation, padding, stride from `first` on; one number stands for both axes.
Patches patches(const OpCall& call, size_t first) {
  Patches p{};
  int64_t* fields[] = {p.kernel, p.dilation, p.padding, p.stride};
  for (size_t i = 0; i < 4; ++i) {
    const Dims values = call.ints(first + i);
    fields[i][0] = values.front();
    fields[i][1] = values.back();
  }
  return p;
}

// im2col(self, kernel_size, dilation, padding, stride): [N, C, H, W] -> [N, C * kh * kw, positions]
Values im2col(const OpCall& call) {
  Value x = call.tensor(0);
  if (x.rank() == 3) x = unsqueeze(x, 0);
  const Patches p = patches(call, 1);
  const int64_t rows = p.positions(0, x.dim(2)), columns = p.positions(1, x.dim(3));
  x = pad_axis(pad_axis(x, 2, p.padding[0], p.padding[0]), 3, p.padding[1], p.padding[1]);
  x = unfold_axis(x, 2, p.kernel[0], rows, p.stride[0], p.dilation[0]);     // [N, C, kh, rows, W]
  x = unfold_axis(x, 4, p.kernel[1], columns, p.stride[1], p.dilation[1]);  // [N, C, kh, rows, kw, columns]
  return {hlo::reshape(hlo::transpose(x, {0, 1, 2, 4, 3, 5}), call.result_type().dims)};
}

// col2im(self, output_size, kernel_size, dilation, padding, stride)
Values col2im(const OpCall& call) {
  Value x = call.tensor(0);
  if (x.rank() == 2) x = unsqueeze(x, 0);
  const Dims output = call.ints(1);
  const Patches p = patches(call, 2);
  const int64_t rows = p.positions(0, output[0]), columns = p.positions(1, output[1]);
  const int64_t channels = x.dim(1) / (p.kernel[0] * p.kernel[1]);
  x = convert_like_torch(x, compute_type(x.dtype()));
  x = hlo::reshape(x, {x.dim(0), channels, p.kernel[0], p.kernel[1], rows, columns});
  x = hlo::transpose(x, {0, 1, 2, 4, 3, 5});
  x = fold_axis(x, 4, output[1] + 2 * p.padding[1], p.stride[1], p.dilation[1]);
  x = fold_axis(x, 2, output[0] + 2 * p.padding[0], p.stride[0], p.dilation[0]);
  x = pad_axis(pad_axis(x, 2, -p.padding[0], -p.padding[0]), 3, -p.padding[1], -p.padding[1]);
  return {convert_like_torch(hlo::reshape(x, call.result_type().dims), call.result_type().dtype)};
}

// Windows that overlap many times over: one scatter instead of one addition per element of the window.
// x: [..., positions, window]
Value scatter_windows(Value x, int64_t size, int64_t step) {
  Builder& builder = x.builder();
  const size_t batch = x.rank() - 2;
  const int64_t positions = x.dim(batch), window = x.dim(batch + 1);
  const TensorType index_type{DType::kS32, {positions, window}};
  const Value starts = hlo::multiply(hlo::iota(builder, index_type, 0), builder.constant(step, index_type));
  const Value indices = hlo::reshape(hlo::add(starts, hlo::iota(builder, index_type, 1)), {positions, window, 1});
  Dims sizes = leading(x, 2);
  sizes.push_back(size);
  hlo::ScatterDims dims;
  dims.update_window_dims = tpu::iota(batch);
  dims.inserted_window_dims = {static_cast<int64_t>(batch)};
  dims.scatter_dims_to_operand_dims = {static_cast<int64_t>(batch)};
  dims.index_vector_dim = 2;
  return hlo::scatter(builder.constant(int64_t{0}, {x.dtype(), sizes}), indices, x, dims,
                      [](std::span<const Value> a) { return Values{hlo::add(a[0], a[1])}; });
}

// unfold_backward(grad, sizes, dim, window, step): grad is [..., positions, ..., window]
Values unfold_backward(const OpCall& call) {
  const TensorType& type = call.result_type();
  Value grad = call.operand(0, compute_type(type.dtype));
  if (type.rank() == 0) return {convert_like_torch(hlo::reshape(grad, {}), type.dtype)};
  const auto axis = static_cast<size_t>(wrap_axis(call.integer(2), type.rank()));
  const int64_t size = type.dims[axis], window = call.integer(3), step = call.integer(4);
  constexpr int64_t kMostAdditions = 32;
  if (window == 0 || grad.type().numel() == 0) return {zeros(call)};
  // Order of grad's dims with the positions second to last, and back.
  Dims order, back;
  for (size_t i = 0; i < type.rank(); ++i) {
    if (i != axis) order.push_back(static_cast<int64_t>(i));
  }
  append(order, {static_cast<int64_t>(axis), static_cast<int64_t>(type.rank())});
  for (size_t i = 0; i < type.rank(); ++i) {
    const auto last = static_cast<int64_t>(type.rank()) - 1;
    back.push_back(i == axis ? last : static_cast<int64_t>(i < axis ? i : i - 1));
  }
  grad = hlo::transpose(grad, order);
  const size_t batch = type.rank() - 1;
  Value result;
  if (window <= kMostAdditions) {
    Dims swap = tpu::iota(batch + 2);
    std::swap(swap[batch], swap[batch + 1]);
    result = fold_axis(hlo::transpose(grad, swap), batch, size, step, 1);
  } else {
    result = scatter_windows(grad, size, step);
  }
  return {convert_like_torch(hlo::transpose(result, back), type.dtype)};
}

constexpr Row kRows[] = {
    {.name = "cat", .lower = cat, .separate_out = true},
    {"stack", stack},
    {"block_diag", block_diag},
    {"repeat", repeat},
    {"flip", flip},
    {"roll", roll},
    {"pixel_shuffle", pixel_shuffle},
    {"pixel_unshuffle", pixel_unshuffle},
    {"channel_shuffle", channel_shuffle},
    {"tril", tril},
    {"triu", triu},
    {"diag_embed", diag_embed},
    {"diagonal_backward", diagonal_backward},
    {"im2col", im2col},
    {"col2im", col2im},
    {"unfold_backward", unfold_backward},
};

}  // namespace

std::span<const Row> shape_rows() { return kRows; }

}  // namespace tpu::lowering
