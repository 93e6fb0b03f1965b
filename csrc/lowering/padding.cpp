// Constant, reflection and replication padding with their gradients. The padding list starts at the last dim
// and holds (low, high) pairs; negative amounts crop.

#include "lowering/helpers.h"
#include "lowering/table.h"

namespace tpu::lowering {
namespace {

namespace hlo = stablehlo;
using Values = std::vector<Value>;

Value slice_axis(Value x, size_t axis, int64_t start, int64_t limit) {
  Dims starts(x.rank(), 0), limits = x.dims();
  starts[axis] = start;
  limits[axis] = limit;
  return hlo::slice(x, starts, limits, Dims(x.rank(), 1));
}

Value pad_axis(Value x, size_t axis, int64_t low, int64_t high) {
  Dims lows(x.rank(), 0), highs(x.rank(), 0);
  lows[axis] = low;
  highs[axis] = high;
  return hlo::pad(x, scalar(x.builder(), int64_t{0}, x.dtype()), lows, highs, Dims(x.rank(), 0));
}

Values constant_pad_nd(const OpCall& call) {
  Value x = call.tensor(0);
  const Dims padding = call.ints(1);
  Dims low(x.rank(), 0), high(x.rank(), 0);
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    low[x.rank() - 1 - i] = padding[2 * i];
    high[x.rank() - 1 - i] = padding[2 * i + 1];
  }
  const Value fill = call.is_none(2) ? scalar(call.builder(), int64_t{0}, x.dtype()) : call.operand(2, x.dtype());
  x = call.without_rest(0, x, fill);  // the padding begins there
  return {hlo::pad(x, fill, low, high, Dims(x.rank(), 0))};
}

// How elements outside [0, size) of one axis follow from those inside.
struct Border {
  /// The `count` elements next to the low (or high) edge, and the gradient of that.
  Value (*extend)(Value x, size_t axis, int64_t count, bool low);
  Value (*gather_back)(Value grad, size_t axis, int64_t size, bool low);
};

// The edge itself is not repeated: b c d | c b
Value reflect(Value x, size_t axis, int64_t count, bool low) {
  const int64_t size = x.dim(axis);
  const Value inner = low ? slice_axis(x, axis, 1, count + 1) : slice_axis(x, axis, size - 1 - count, size - 1);
  return hlo::reverse(inner, {static_cast<int64_t>(axis)});
}

Value reflect_back(Value grad, size_t axis, int64_t size, bool low) {
  const int64_t count = grad.dim(axis), rest = size - 1 - count;
  const Value inner = hlo::reverse(grad, {static_cast<int64_t>(axis)});
  return low ? pad_axis(inner, axis, 1, rest) : pad_axis(inner, axis, rest, 1);
}

Value replicate(Value x, size_t axis, int64_t count, bool low) {
  const int64_t size = x.dim(axis);
  const Value edge = low ? slice_axis(x, axis, 0, 1) : slice_axis(x, axis, size - 1, size);
  Dims sizes = x.dims();
  sizes[axis] = count;
  return broadcast_to(edge, sizes);
}

Value replicate_back(Value grad, size_t axis, int64_t size, bool low) {
  const Value edge = reduce_axes(grad, hlo::Reducer::kAdd, {static_cast<int64_t>(axis)}, true);
  return low ? pad_axis(edge, axis, 0, size - 1) : pad_axis(edge, axis, size - 1, 0);
}

constexpr Border kReflection{reflect, reflect_back};
constexpr Border kReplication{replicate, replicate_back};

Value extend_axis(Value x, size_t axis, int64_t low, int64_t high, const Border& border) {
  Values parts;
  if (low > 0) parts.push_back(border.extend(x, axis, low, true));
  parts.push_back(x);
  if (high > 0) parts.push_back(border.extend(x, axis, high, false));
  const Value whole = hlo::concatenate(parts, static_cast<int64_t>(axis));
  return pad_axis(whole, axis, std::min<int64_t>(low, 0), std::min<int64_t>(high, 0));
}

Value extend_axis_back(Value grad, size_t axis, int64_t size, int64_t low, int64_t high, const Border& border) {
  grad = pad_axis(grad, axis, std::max<int64_t>(-low, 0), std::max<int64_t>(-high, 0));
  low = std::max<int64_t>(low, 0);
  high = std::max<int64_t>(high, 0);
  const int64_t whole = grad.dim(axis);
  Value result = slice_axis(grad, axis, low, low + size);
  if (low > 0) result = hlo::add(result, border.gather_back(slice_axis(grad, axis, 0, low), axis, size, true));
  if (high > 0) {
    result = hlo::add(result, border.gather_back(slice_axis(grad, axis, whole - high, whole), axis, size, false));
  }
  return result;
}

Values extend(const OpCall& call, const Border& border) {
  Value x = call.tensor(0);
  const Dims padding = call.ints(1);
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    x = extend_axis(x, x.rank() - 1 - i, padding[2 * i], padding[2 * i + 1], border);
  }
  return {x};
}

// (grad_output, self, padding)
Values extend_backward(const OpCall& call, const Border& border) {
  const TensorType& type = call.result_type();
  Value grad = call.operand(0, compute_type(type.dtype));
  const Dims padding = call.ints(2);
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    const size_t axis = type.rank() - 1 - i;
    grad = extend_axis_back(grad, axis, type.dims[axis], padding[2 * i], padding[2 * i + 1], border);
  }
  return {convert_like_torch(grad, type.dtype)};
}

Values reflection_pad(const OpCall& call) { return extend(call, kReflection); }
Values replication_pad(const OpCall& call) { return extend(call, kReplication); }
Values reflection_pad_backward(const OpCall& call) { return extend_backward(call, kReflection); }
Values replication_pad_backward(const OpCall& call) { return extend_backward(call, kReplication); }

constexpr uint32_t kSelfUnread = 1 << 1;

constexpr Row kRows[] = {
    {"constant_pad_nd", constant_pad_nd},
    {"reflection_pad1d", reflection_pad},
    {"reflection_pad2d", reflection_pad},
    {"reflection_pad3d", reflection_pad},
    {"replication_pad1d", replication_pad},
    {"replication_pad2d", replication_pad},
    {"replication_pad3d", replication_pad},
    {.name = "reflection_pad1d_backward", .lower = reflection_pad_backward, .unread_args = kSelfUnread},
    {.name = "reflection_pad2d_backward", .lower = reflection_pad_backward, .unread_args = kSelfUnread},
    {.name = "reflection_pad3d_backward", .lower = reflection_pad_backward, .unread_args = kSelfUnread},
    {.name = "replication_pad1d_backward", .lower = replication_pad_backward, .unread_args = kSelfUnread},
    {.name = "replication_pad2d_backward", .lower = replication_pad_backward, .unread_args = kSelfUnread},
    {.name = "replication_pad3d_backward", .lower = replication_pad_backward, .unread_args = kSelfUnread},
};

}  // namespace

std::span<const Row> padding_rows() { return kRows; }

}  // namespace tpu::lowering
