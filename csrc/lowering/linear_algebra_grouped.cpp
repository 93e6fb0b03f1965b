// _grouped_mm: products whose rows, columns or contracted entries are divided into groups by run-time
// offsets, as the experts of a mixture-of-experts layer need them.
//
// The offsets are not known when the program is built, so the ragged dimension is cut into tiles of a fixed
// size, each inside one group; a loop runs over the tiles that exist. A group of n entries takes
// ceil(n / tile) tiles, so at most extent / tile + groups products of one tile are computed, never a product
// of everything with every group.

#include <algorithm>

#include "lowering/linear_algebra.h"
#include "lowering/linear_algebra_loop.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Per-group tables, all i32[groups]: first entry, end, and number of tiles up to and including the group.
struct Groups {
  Value start;
  Value end;
  Value tiles_before_end;
  Value tile_count;  // 0-d
  int64_t tile;
  int64_t extent;
};

/// About one tile for an average group: more would waste products on padding, fewer would loop longer.
int64_t tile_size(int64_t extent, int64_t groups) {
  const int64_t average = (extent + groups - 1) / groups;
  int64_t tile = 8;
  while (tile < average && tile < 512) tile *= 2;
  return std::min(tile, extent);
}

/// Running sum of an i32[n] value; n is a number of experts, so n * n comparisons are nothing.
Value running_sum(Value x) {
  const int64_t n = x.dim(0);
  Builder& builder = x.builder();
  const Value before = compare(index_along(builder, {n, n}, 1), index_along(builder, {n, n}, 0), Compare::kLe);
  const Value terms = broadcast_in_dim(x, {n, n}, {1});
  return reduce(select(before, terms, full_like(terms, 0)), Reducer::kAdd, {1});
}

Groups divide(Value offsets, int64_t extent) {
  Builder& builder = offsets.builder();
  const int64_t groups = offsets.dim(0);
  const int64_t tile = tile_size(extent, groups);
  const Value end = convert(offsets, DType::kS32);
  const Value zero = builder.constant(int64_t{0}, {DType::kS32, {1}});
  const Value parts[] = {zero, slice(end, {0}, {groups - 1}, {1})};
  const Value start = groups > 1 ? concatenate(parts, 0) : zero;
  const Value size = maximum(subtract(end, start), full_like(end, 0));
  const Value rounded = add(size, full_like(size, static_cast<double>(tile - 1)));
  const Value tiles = running_sum(divide(rounded, full_like(size, static_cast<double>(tile))));
  const Value last = reshape(slice(tiles, {groups - 1}, {groups}, {1}), {});
  return {start, end, tiles, last, tile, extent};
}

/// Where tile `index` lies: its group, the start of a window of `tile` entries that holds it and stays
/// inside the extent, and which entries of the window (i1[tile]) belong to it.
struct Tile {
  Value group;
  Value start;
  Value mask;
};

/// `fixed` begins with the tables start, end, tiles_before_end.
Tile locate(Value index, std::span<const Value> fixed, int64_t tile, int64_t extent) {
  Builder& builder = index.builder();
  const Value tiles = fixed[2];
  const Value passed = compare(tiles, broadcast_to(index, tiles.dims()), Compare::kLe);
  const Value group = reduce(convert(passed, DType::kS32), Reducer::kAdd, {0});
  const Value start = element_at(fixed[0], group);
  const Value end = element_at(fixed[1], group);
  const Value size = scalar(builder, tile, DType::kS32);
  const Value length = subtract(end, start);
  const Value own_tiles = divide(add(length, scalar(builder, tile - 1, DType::kS32)), size);
  const Value nth = add(subtract(index, element_at(tiles, group)), own_tiles);
  const Value first = add(start, multiply(nth, size));
  const Value window = minimum(first, scalar(builder, extent - tile, DType::kS32));
  const Value position = add(broadcast_to(window, {tile}), index_along(builder, {tile}, 0));
  const Value from = compare(position, broadcast_to(first, {tile}), Compare::kGe);
  const Value limit = minimum(end, add(first, size));
  return {group, window, bit_and(from, compare(position, broadcast_to(limit, {tile}), Compare::kLt))};
}

/// Entry `group` of dim 0 of a 3-d value.
Value matrix_of(Value stack, Value group) {
  const Value zero = scalar(stack.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {group, zero, zero};
  return reshape(dynamic_slice(stack, start, {1, stack.dim(1), stack.dim(2)}), {stack.dim(1), stack.dim(2)});
}

/// `tile` entries from `start` along `axis` of a matrix.
Value strip(Value matrix, Value start, int64_t axis, int64_t tile) {
  const Value zero = scalar(matrix.builder(), int64_t{0}, DType::kS32);
  Dims sizes = matrix.dims();
  sizes[static_cast<size_t>(axis)] = tile;
  const Value from[] = {axis == 0 ? start : zero, axis == 1 ? start : zero};
  return dynamic_slice(matrix, from, sizes);
}

std::vector<Value> run(const Groups& groups, Value init, std::span<const Value> operands, const LoopBody& body) {
  std::vector<Value> fixed{groups.start, groups.end, groups.tiles_before_end};
  fixed.insert(fixed.end(), operands.begin(), operands.end());
  const Value state[] = {init};
  return counted_loop(groups.tile_count, state, fixed, body);
}

const DotDims kMatrix{{}, {}, {1}, {0}};

/// [M, K] x [G, K, N] with groups of rows (axis 0), or [G, M, K] x [K, N] with groups of columns (axis 1).
Value ragged_result(Value a, Value b, const Groups& groups, int64_t axis, const TensorType& type) {
  const Value init = a.builder().constant(0.0, type);
  const Value operands[] = {a, b};
  return run(groups, init, operands, [&](Value index, auto state, auto fixed) {
    const Tile tile = locate(index, fixed, groups.tile, groups.extent);
    const Value lhs = axis == 0 ? strip(fixed[3], tile.start, 0, groups.tile) : matrix_of(fixed[3], tile.group);
    const Value rhs = axis == 0 ? matrix_of(fixed[4], tile.group) : strip(fixed[4], tile.start, 1, groups.tile);
    const Value product = convert(dot_general(lhs, rhs, kMatrix, compute_type(lhs.dtype())), type.dtype);
    const Value old = strip(state[0], tile.start, axis, groups.tile);
    const Value updated = select(broadcast_in_dim(tile.mask, product.dims(), {axis}), product, old);
    const Value zero = scalar(index.builder(), int64_t{0}, DType::kS32);
    const Value start[] = {axis == 0 ? tile.start : zero, axis == 1 ? tile.start : zero};
    return std::vector<Value>{dynamic_update_slice(state[0], updated, start)};
  })[0];
}

/// [M, K] x [K, N] with groups of K: one [M, N] product per group.
Value ragged_contraction(Value a, Value b, const Groups& groups, const TensorType& type) {
  const DType dtype = compute_type(a.dtype());
  const Value init = a.builder().constant(0.0, TensorType{dtype, type.dims});
  const Value operands[] = {a, b};
  const Value sums = run(groups, init, operands, [&](Value index, auto state, auto fixed) {
    const Tile tile = locate(index, fixed, groups.tile, groups.extent);
    const Value lhs = strip(fixed[3], tile.start, 1, groups.tile);
    const Value rhs = strip(fixed[4], tile.start, 0, groups.tile);
    // Both sides are masked: an infinity or NaN of another group must not meet a zero.
    const Value left = select(broadcast_in_dim(tile.mask, lhs.dims(), {1}), lhs, full_like(lhs, 0));
    const Value right = select(broadcast_in_dim(tile.mask, rhs.dims(), {0}), rhs, full_like(rhs, 0));
    const Value product = dot_general(left, right, kMatrix, dtype);
    const Value sum = add(matrix_of(state[0], tile.group), product);
    const Value zero = scalar(index.builder(), int64_t{0}, DType::kS32);
    const Value start[] = {tile.group, zero, zero};
    return std::vector<Value>{dynamic_update_slice(state[0], reshape(sum, {1, sum.dim(0), sum.dim(1)}), start)};
  })[0];
  return convert(sums, type.dtype);
}

std::vector<Value> grouped_mm(const OpCall& call) {
  const Value a = call.tensor(0);
  const Value b = call.tensor(1);
  const TensorType& type = call.result_type();
  if (call.has(3)) throw Error(Code::kNotImplemented, "_grouped_mm: bias is not supported");
  if (call.is_none(2)) {  // both 3-d
    const Value product = dot_general(a, b, {{0}, {0}, {2}, {1}}, compute_type(a.dtype()));
    return {convert_like_torch(product, type.dtype)};
  }
  const Value offsets = call.tensor(2);
  const bool rows = b.rank() == 3, columns = a.rank() == 3;
  const int64_t extent = rows ? a.dim(0) : columns ? b.dim(1) : b.dim(0);
  if (type.numel() == 0 || extent == 0 || offsets.dim(0) == 0) return {call.builder().constant(0.0, type)};
  const Groups groups = divide(offsets, extent);
  if (rows || columns) return {ragged_result(a, b, groups, rows ? 0 : 1, type)};
  return {ragged_contraction(a, b, groups, type)};
}

const Row kRows[] = {
    {.name = "_grouped_mm", .lower = grouped_mm, .heavy = true},
};

}  // namespace

std::span<const Row> linear_algebra_grouped_rows() { return kRows; }

}  // namespace tpu::lowering
