// Indexing along one dimension: gather, index_select, index_add and kin, isin, repeat_interleave.

#include "lowering/indexing.h"

#include <bit>

namespace tpu::lowering {

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

constexpr char kOutOfRange[] = "index out of range in self";

/// What a gather without elements returns: a value of the result's type.
Value nothing(const OpCall& call) {
  const TensorType& type = call.result_type();
  return convert_like_torch(call.builder().constant(int64_t{0}, {DType::kS32, type.dims}), type.dtype);
}

Results lower_gather(const OpCall& call) {
  const Value index = at_least_1d(call.tensor(2));
  if (index.type().numel() == 0) return {nothing(call)};
  const Value x = at_least_1d(call.tensor(0));
  const int64_t axis = wrap_axis(call.integer(1), x.rank());
  const IndexRule rule{.code = Code::kInvalidArgument, .present = call.present_size(0, axis)};
  const Value positions = checked_index(call, index, x.dim(axis), axis, rule);
  return {reshape(take_along_axis(x, positions, axis), call.result_type().dims)};
}

Results lower_index_select(const OpCall& call) {
  if (call.result_type().numel() == 0) return {nothing(call)};
  const Value x = at_least_1d(call.tensor(0));
  const int64_t axis = wrap_axis(call.integer(1), x.rank());
  const Value index = at_least_1d(call.tensor(2));
  const IndexRule rule{.message = kOutOfRange, .present = call.present_size(0, axis)};
  const Value positions = checked_index(call, index, x.dim(axis), axis, rule);
  return {reshape(take_slices(x, positions, axis), call.result_type().dims)};
}

/// Operands of index_add and kin: (self, dim, index, source), 0-d ones as [1].
struct SliceUpdate {
  Value x;
  int64_t axis;
  Value positions;
  Value source;  // x's dims, `axis` as long as the index
};

SliceUpdate slice_update(const OpCall& call, DType dtype, const IndexRule& rule) {
  const Value x = at_least_1d(convert_like_torch(call.tensor(0), dtype));
  const int64_t axis = wrap_axis(call.integer(1), x.rank());
  const Value index = at_least_1d(call.tensor(2));
  Dims sizes = x.dims();
  sizes[axis] = index.dim(0);
  const Value positions = checked_index(call, index, x.dim(axis), axis, rule);
  return {x, axis, positions, reshape(convert_like_torch(call.tensor(3), dtype), sizes)};
}

/// Back from the compute type and from [1] to the result's dtype and dims.
Results finish_update(const OpCall& call, Value x) {
  return {reshape(convert_like_torch(x, call.result_type().dtype), call.result_type().dims)};
}

Results lower_index_add(const OpCall& call) {
  const DType dtype = compute_type(call.result_type().dtype);
  // The CPU raises an IndexError but for rows, which it adds by another kernel.
  const size_t rank = call.tensor(0).rank();
  const bool of_rows = rank > 1 && wrap_axis(call.integer(1), rank) == 0;
  const IndexRule rule = of_rows ? IndexRule{.code = Code::kInvalidArgument} : IndexRule{.message = kOutOfRange};
  const SliceUpdate u = slice_update(call, dtype, rule);
  const auto alpha = call.known(4);
  Value source = u.source;
  if (!alpha || alpha->as_complex() != 1.0)
    source = multiply(source, broadcast_to(call.operand(4, dtype), source.dims()));
  return finish_update(call, scatter_slices(u.x, u.positions, source, u.axis, Combine::kAdd));
}

Results lower_index_copy(const OpCall& call) {
  const SliceUpdate u = slice_update(call, call.result_type().dtype, {});
  return finish_update(call, scatter_slices(u.x, u.positions, u.source, u.axis, Combine::kReplace));
}

Results lower_index_fill(const OpCall& call) {
  const Value x = at_least_1d(call.tensor(0));
  const int64_t axis = wrap_axis(call.integer(1), x.rank());
  const Value index = at_least_1d(call.tensor(2));
  const Value positions = checked_index(call, index, x.dim(axis), axis, {.wrap_negative = true});
  const Value fill = reshape(call.operand(3, x.dtype()), {});
  if (x.type().numel() == 0 || index.dim(0) == 0) return finish_update(call, x);
  Dims sizes = x.dims();
  sizes[axis] = index.dim(0);
  return finish_update(call, scatter_slices(x, positions, broadcast_to(fill, sizes), axis, Combine::kReplace));
}

Results lower_index_reduce(const OpCall& call) {
  const DType dtype = compute_type(call.result_type().dtype);
  const SliceUpdate u = slice_update(call, dtype, {.message = kOutOfRange});
  const auto scatter_to = [&u](Value x, Value updates, Combine combine) {
    return scatter_slices(x, u.positions, updates, u.axis, combine);
  };
  return finish_update(call, scatter_reduction(u.x, u.source, call.string(4), call.boolean_or(5, true), scatter_to));
}

/// Position of each element of `queries` in ascending 1-d `sorted` (first one not smaller), by a binary search
/// of log2(n) gathers: same number of steps for every element, so no loop is needed.
Value lower_bound(Value sorted, Value queries) {
  const int64_t size = sorted.dim(0);
  const DType dtype = index_dtype(2 * size);
  Value position = queries.builder().constant(int64_t{0}, {dtype, queries.dims()});
  for (auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size))); step > 0; step /= 2) {
    const Value next = add(position, full_like(position, static_cast<double>(step)));
    const Value in_range = compare(next, full_like(position, static_cast<double>(size)), Compare::kLe);
    const Value last = take_slices(sorted, subtract(next, full_like(next, 1)), 0);  // clamped when out of range
    position = select(bit_and(in_range, compare(last, queries, Compare::kLt)), next, position);
  }
  return position;
}

/// Whether each element of `x` is among 1-d `set`.
Value is_member(Value x, Value set) {
  // Comparing all pairs fuses into one loop without memory traffic; past this many pairs a search wins.
  constexpr int64_t kMaxPairs = int64_t{1} << 24;
  if (x.type().numel() * set.dim(0) <= kMaxPairs) {
    Dims pairs = x.dims();
    pairs.push_back(set.dim(0));
    const Value left = broadcast_in_dim(x, pairs, iota(x.rank()));
    const Value right = broadcast_in_dim(set, pairs, {static_cast<int64_t>(x.rank())});
    return reduce(compare(left, right, Compare::kEq), Reducer::kOr, {static_cast<int64_t>(x.rank())});
  }
  const Value sorted = stablehlo::sort(std::vector<Value>{set}, 0, false, [](std::span<const Value> a) {
    return std::vector<Value>{compare(a[0], a[1], Compare::kLt, is_floating(a[0].dtype()))};
  })[0];
  return compare(take_slices(sorted, lower_bound(sorted, x), 0), x, Compare::kEq);
}

Results lower_isin(const OpCall& call) {
  const DType dtype = call.promoted();
  const Value x = broadcast_to(call.operand(0, dtype), call.result_type().dims);
  const Value set = call.operand(1, dtype);
  const Value found = is_member(x, reshape(set, {set.type().numel()}));
  return {call.boolean_or(3, false) ? logical_not(found) : found};
}

/// repeats -> indices, with output_size known: [2, 0, 1] -> [0, 0, 2].
Results lower_repeat_interleave(const OpCall& call) {
  const TensorType& type = call.result_type();
  const Value repeats = call.tensor(0);
  const int64_t length = type.dims[0];
  if (repeats.dim(0) == 0 || length == 0) return {call.builder().constant(int64_t{0}, type)};
  call.check(any_true(compare(repeats, full_like(repeats, 0), Compare::kLt)), Code::kInvalidArgument,
             "repeats can not be negative");
  const Value total = reduce(repeats, Reducer::kAdd, {0});
  call.check(compare(total, scalar(call.builder(), length, total.dtype()), Compare::kNe), Code::kInvalidArgument,
             "allocated size does not match required size");
  // One mark where each run begins (several where runs are empty; those that begin at the end are dropped):
  // the running count of marks is the run's number plus one.
  const Value begins = subtract(running_sum(repeats), repeats);
  const Value none = call.builder().constant(int64_t{0}, {type.dtype, {length}});
  const Value marks = call.builder().constant(int64_t{1}, {type.dtype, repeats.dims()});
  const Value counts = running_sum(scatter_slices(none, begins, marks, 0, Combine::kAdd));
  return {subtract(counts, full_like(counts, 1))};
}

const Row kRows[] = {
    {.name = "gather", .lower = lower_gather, .separate_out = true},
    {.name = "index_select", .lower = lower_index_select, .separate_out = true},
    {"index_add", lower_index_add},
    {"index_copy", lower_index_copy},
    {"index_fill.int_Scalar", lower_index_fill},
    {"index_fill.int_Tensor", lower_index_fill},
    {"index_reduce", lower_index_reduce},
    {"isin.Tensor_Tensor", lower_isin},
    {"isin.Tensor_Scalar", lower_isin},
    {"isin.Scalar_Tensor", lower_isin},
    {"repeat_interleave.Tensor", lower_repeat_interleave},
};

std::vector<Row> join(std::initializer_list<std::span<const Row>> parts) {
  std::vector<Row> rows;
  for (const auto part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

}  // namespace

std::span<const Row> indexing_rows() {
  static const std::vector<Row> rows =
      join({kRows, scatter_rows(), advanced_indexing_rows(), embedding_rows(), segment_rows()});
  return rows;
}

}  // namespace tpu::lowering
