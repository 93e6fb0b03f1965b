// Losses whose target holds class indices: negative log likelihood and the margin losses.

#include <limits>
#include <string>

#include "base/error.h"
#include "lowering/loss.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

/// `per_sample` (sizes of `sizes` without `axis`) repeated along `axis`.
Value over_classes(Value per_sample, const Dims& sizes, int64_t axis) {
  return broadcast_over(per_sample, sizes, Dims{axis});
}

/// True where the class position along `axis` of `sizes` equals the sample's target.
Value at_target(Value target, const Dims& sizes, int64_t axis) {
  Value classes = hlo::iota(target.builder(), TensorType{DType::kS32, sizes}, axis);
  return eq(classes, over_classes(target, sizes, axis));
}

/// x[n, target[n], ...] for `x` with classes on `axis` and targets already in range; zeros without samples or classes.
Value pick_class(Value x, Value target, int64_t axis) {
  if (x.type().numel() == 0) return full_like(hlo::convert(target, x.dtype()), 0);
  hlo::GatherDims dims;
  for (int64_t i = 0, k = 0; i < static_cast<int64_t>(x.rank()); ++i) {
    if (i == axis) continue;
    dims.operand_batching_dims.push_back(i);
    dims.start_indices_batching_dims.push_back(k++);
  }
  dims.collapsed_slice_dims = {axis};
  dims.start_index_map = {axis};
  dims.index_vector_dim = static_cast<int64_t>(target.rank());
  return hlo::gather(x, target, dims, Dims(x.rank(), 1));
}

/// table[index] for a one-dimensional table and indices in range; zeros if the table is empty.
Value look_up(Value table, Value index) {
  if (table.dim(0) == 0) return full_like(hlo::convert(index, table.dtype()), 0);
  hlo::GatherDims dims;
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = static_cast<int64_t>(index.rank());
  return hlo::gather(table, index, dims, {1});
}

// ---- negative log likelihood

/// Targets of a likelihood loss: class indices made safe to look up, and the weight of each sample.
struct Targets {
  int64_t axis;   // of the classes in the input
  Value index;    // s32, 0 where ignored
  Value ignored;  // i1
  Value weight;   // the class's weight, 0 where ignored
};

/// Reads target (argument `i`), class weights (`i + 1`) and the index to ignore (`i + 3`) for inputs of `sizes`.
/// An index outside the classes raises IndexError.
Targets read_targets(const OpCall& call, size_t i, const Dims& sizes, DType dtype) {
  int64_t axis = sizes.size() > 1 ? 1 : 0;
  int64_t class_count = sizes[axis];
  Value target = hlo::convert(call.tensor(i), DType::kS64);
  if (sizes.size() == 1) target = hlo::reshape(target, {});  // one sample: target has one element
  Value ignored = eq(target, target.builder().constant(call.integer(i + 3), target.type()));
  Value count = target.builder().constant(class_count, target.type());
  Value outside = hlo::bit_or(lt(target, full_like(target, 0)), ge(target, count));
  Value bad = hlo::bit_and(outside, hlo::logical_not(ignored));
  call.check(hlo::reduce(bad, hlo::Reducer::kOr, iota(bad.rank())), Code::kIndex, "Target is out of bounds.");
  Value index = hlo::convert(hlo::select(hlo::bit_or(ignored, outside), full_like(target, 0), target), DType::kS32);
  TensorType weight_type{dtype, target.dims()};
  Value weight = target.builder().constant(1.0, weight_type);
  if (call.has(i + 1)) weight = look_up(call.operand(i + 1, dtype), index);
  weight = hlo::select(ignored, full_like(weight, 0), weight);
  return {axis, index, ignored, weight};
}

/// nll_loss_forward(input, target, weight, reduction, ignore_index) -> output, total weight; the same for
/// images, whose classes are on dim 1 as well.
Values nll_loss_forward(const OpCall& call) {
  if (call.has(2) && call.dtype(2) != call.dtype(0)) {
    throw Error(Code::kInvalidArgument, "expected scalar type " + std::string(torch_name(call.dtype(0))) +
                                            " but found " + std::string(torch_name(call.dtype(2))));
  }
  Value x = call.operand(0, work_type(call));
  Reduction reduction = reduction_of(call, 3);
  const TensorType& total_type = call.result_type(1);
  Targets targets = read_targets(call, 1, x.dims(), x.dtype());
  Value loss = hlo::negate(hlo::multiply(pick_class(x, targets.index, targets.axis), targets.weight));
  // 0 * -inf would be NaN for an ignored sample.
  loss = hlo::select(targets.ignored, full_like(loss, 0), loss);
  Value total = sum_all(targets.weight);
  bool per_sample = reduction == Reduction::kNone && loss.rank() > 0;
  if (!per_sample && reduction != Reduction::kNone) loss = sum_all(loss);
  if (reduction == Reduction::kMean) loss = hlo::divide(loss, total);
  if (per_sample) total = full_like(total, 0);  // as PyTorch leaves it
  return {convert_like_torch(loss, call.result_type(0).dtype), hlo::convert(total, total_type.dtype)};
}

/// nll_loss_backward(grad, input, target, weight, reduction, ignore_index, total_weight)
Values nll_loss_backward(const OpCall& call) {
  DType dtype = work_type(call);
  const Dims& sizes = call.result_type().dims;
  Targets targets = read_targets(call, 2, sizes, dtype);
  Value grad = call.operand(0, dtype);
  if (reduction_of(call, 4) == Reduction::kMean) grad = hlo::divide(grad, call.operand(6, dtype));
  grad = hlo::negate(hlo::multiply(broadcast_to(grad, targets.weight.dims()), targets.weight));
  // An ignored sample has gradient 0 even where the scale is infinite or NaN (everything ignored).
  grad = hlo::select(targets.ignored, full_like(grad, 0), grad);
  Value spread = over_classes(grad, sizes, targets.axis);
  Value chosen = at_target(targets.index, sizes, targets.axis);
  return finish(call, hlo::select(chosen, spread, full_like(spread, 0)));
}

// ---- margins between classes

/// Operands of a margin loss as [samples, classes] and [samples].
struct MarginOperands {
  Value input, target, chosen;
  int64_t samples, classes;
};

/// Input (argument `i`) and target (`i + 1`); an index outside the classes raises an error.
MarginOperands margin_operands(const OpCall& call, size_t i) {
  Value x = call.operand(i, work_type(call));
  int64_t classes = x.rank() ? x.dims().back() : 1, samples = x.rank() == 2 ? x.dim(0) : 1;
  Value target = hlo::reshape(call.tensor(i + 1), {samples});
  Value count = target.builder().constant(classes, target.type());
  Value bad = hlo::bit_or(lt(target, full_like(target, 0)), ge(target, count));
  call.check(hlo::reduce(bad, hlo::Reducer::kOr, {0}), Code::kInvalidArgument, "target out of range");
  Dims sizes = {samples, classes};
  target = hlo::convert(target, DType::kS32);
  return {hlo::reshape(x, sizes), target, at_target(target, sizes, 1), samples, classes};
}

/// margin - x[target] + x[j], and the class weight of each sample's target over the classes.
std::pair<Value, Value> margin_violation(const OpCall& call, const MarginOperands& o, size_t margin, size_t weight) {
  Value zeros = full_like(o.input, 0);
  Value own = hlo::reduce(hlo::select(o.chosen, o.input, zeros), hlo::Reducer::kAdd, {1});
  Value limit = work_scalar(call, margin, o.input);
  Value violation = hlo::add(hlo::subtract(limit, over_classes(own, o.input.dims(), 1)), o.input);
  Value scale = full_like(o.input, 1.0);
  if (call.has(weight)) {
    Value class_weight = broadcast_to(call.operand(weight, o.input.dtype()), o.input.dims());
    Value own_weight = hlo::reduce(hlo::select(o.chosen, class_weight, zeros), hlo::Reducer::kAdd, {1});
    scale = over_classes(own_weight, o.input.dims(), 1);
  }
  return {violation, scale};
}

/// The exponent of a margin loss: 1 or 2, as PyTorch allows.
bool is_squared(const OpCall& call, size_t i) { return call.real(i) == 2; }

/// multi_margin_loss(input, target, p, margin, weight, reduction)
Values multi_margin_loss(const OpCall& call) {
  MarginOperands o = margin_operands(call, 0);
  auto [violation, scale] = margin_violation(call, o, 3, 4);
  Value positive = hlo::select(gt(violation, 0.0), violation, full_like(violation, 0));  // 0 of NaN
  if (is_squared(call, 2)) positive = square(positive);
  Value terms = hlo::select(o.chosen, full_like(positive, 0), hlo::multiply(positive, scale));
  Value loss = div(hlo::reduce(terms, hlo::Reducer::kAdd, {1}), static_cast<double>(o.classes));
  if (call.result_type().rank() == 0 && reduction_of(call, 5) == Reduction::kNone)
    return finish(call, hlo::reshape(loss, {}));
  return reduce_loss(call, loss, reduction_of(call, 5));
}

/// multi_margin_loss_backward(grad, input, target, p, margin, weight, reduction)
Values multi_margin_loss_backward(const OpCall& call) {
  MarginOperands o = margin_operands(call, 1);
  auto [violation, scale] = margin_violation(call, o, 4, 5);
  Value slope = is_squared(call, 3) ? mul(violation, 2) : full_like(violation, 1);
  slope = div(hlo::multiply(slope, scale), static_cast<double>(o.classes));
  Value active = hlo::bit_and(gt(violation, 0.0), hlo::logical_not(o.chosen));
  Value others = hlo::select(active, slope, full_like(slope, 0));
  Value own = hlo::negate(hlo::reduce(others, hlo::Reducer::kAdd, {1}));
  Value slopes = hlo::select(o.chosen, over_classes(own, slope.dims(), 1), others);
  Value grad = scaled_gradient(call, Dims{o.samples}, reduction_of(call, 6));
  Value result = hlo::multiply(slopes, over_classes(grad, slope.dims(), 1));
  return finish(call, hlo::reshape(result, call.result_type().dims));
}

// ---- margins between sets of classes

/// Targets of a multi-label loss: [samples, classes] lists that end at the first -1.
struct LabelOperands {
  Value input;      // [samples, classes]
  Value labels;     // s32 [samples, classes], 0 where the list has ended
  Value listed;     // i1 [samples, classes]: the entry belongs to the list
  Value is_target;  // i1 [samples, classes]: the class is in the list
  int64_t samples, classes;
};

LabelOperands label_operands(const OpCall& call, size_t i) {
  Value x = call.operand(i, work_type(call));
  int64_t classes = x.rank() ? x.dims().back() : 1, samples = x.rank() == 2 ? x.dim(0) : 1;
  Dims sizes = {samples, classes};
  Value target = hlo::reshape(call.tensor(i + 1), sizes);
  Value count = target.builder().constant(classes, target.type());
  Value bad = hlo::bit_or(lt(target, full_like(target, -1)), ge(target, count));
  call.check(hlo::reduce(bad, hlo::Reducer::kOr, {0, 1}), Code::kInvalidArgument, "target is out of range");
  target = hlo::convert(target, DType::kS32);
  // The position of each list's first negative entry.
  Value position = hlo::iota(target.builder(), target.type(), 1);
  Value ends = hlo::select(lt(target, 0.0), position, full_like(position, static_cast<double>(classes)));
  Value end = hlo::reduce(ends, hlo::Reducer::kMinimum, {1});
  Value listed = lt(position, over_classes(end, sizes, 1));
  Value labels = hlo::select(listed, target, full_like(target, 0));
  // Class c is a target when any listed entry equals it.
  Dims cube = {samples, classes, classes};  // sample, entry, class
  Value entry = hlo::broadcast_in_dim(hlo::select(listed, target, full_like(target, -1)), cube, {0, 1});
  Value same = eq(entry, hlo::iota(target.builder(), TensorType{DType::kS32, cube}, 2));
  Value is_target = hlo::reduce(same, hlo::Reducer::kOr, {1});
  return {hlo::reshape(x, sizes), labels, listed, is_target, samples, classes};
}

/// 1 - x[label] + x[class] for every (sample, entry, class), and where that pair counts: the entry is listed, the
/// class is no target and the margin is violated.
std::pair<Value, Value> label_violations(const LabelOperands& o) {
  Dims cube = {o.samples, o.classes, o.classes};
  Value own = hlo::broadcast_in_dim(take_along(o.input, o.labels), cube, {0, 1});
  Value other = hlo::broadcast_in_dim(o.input, cube, {0, 2});
  Value violation = hlo::subtract(other, add(own, -1));
  Value counts = hlo::bit_and(hlo::broadcast_in_dim(o.listed, cube, {0, 1}),
                              hlo::broadcast_in_dim(hlo::logical_not(o.is_target), cube, {0, 2}));
  return {violation, hlo::bit_and(counts, gt(violation, 0.0))};
}

/// multilabel_margin_loss_forward(input, target, reduction) -> output, is_target
Values multilabel_margin_loss_forward(const OpCall& call) {
  LabelOperands o = label_operands(call, 0);
  auto [violation, counts] = label_violations(o);
  Value terms = hlo::select(counts, violation, full_like(violation, 0));
  Value loss = div(hlo::reduce(terms, hlo::Reducer::kAdd, {1, 2}), static_cast<double>(o.classes));
  Reduction reduction = reduction_of(call, 2);
  Value output = call.result_type(0).rank() == 0 && reduction == Reduction::kNone
                     ? finish(call, hlo::reshape(loss, {}))[0]
                     : reduce_loss(call, loss, reduction)[0];
  const TensorType& mask_type = call.result_type(1);
  return {output, hlo::reshape(hlo::convert(o.is_target, mask_type.dtype), mask_type.dims)};
}

/// multilabel_margin_loss_backward(grad, input, target, reduction, is_target)
Values multilabel_margin_loss_backward(const OpCall& call) {
  LabelOperands o = label_operands(call, 1);
  auto [violation, counts] = label_violations(o);
  Value ones = hlo::convert(counts, o.input.dtype());
  // Every counted pair pushes the class up and the listed entry down.
  Value up = hlo::reduce(ones, hlo::Reducer::kAdd, {1});
  Value down_by_entry = hlo::reduce(ones, hlo::Reducer::kAdd, {2});
  Dims cube = {o.samples, o.classes, o.classes};
  Value same = eq(hlo::broadcast_in_dim(o.labels, cube, {0, 1}),
                  hlo::iota(o.labels.builder(), TensorType{DType::kS32, cube}, 2));
  Value down_terms = hlo::select(same, hlo::broadcast_in_dim(down_by_entry, cube, {0, 1}), full_like(ones, 0));
  Value down = hlo::reduce(down_terms, hlo::Reducer::kAdd, {1});
  Value slope = div(hlo::subtract(up, down), static_cast<double>(o.classes));
  Value grad = scaled_gradient(call, Dims{o.samples}, reduction_of(call, 3));
  Value result = hlo::multiply(slope, over_classes(grad, slope.dims(), 1));
  return finish(call, hlo::reshape(result, call.result_type().dims));
}

// ---- the table

constexpr uint32_t argument(int i) { return 1u << i; }

constexpr Row kRows[] = {
    {"nll_loss_forward", nll_loss_forward},
    {"nll_loss_backward", nll_loss_backward},
    {"nll_loss2d_forward", nll_loss_forward},
    {"nll_loss2d_backward", nll_loss_backward},
    {"multi_margin_loss", multi_margin_loss, argument(2)},
    {"multi_margin_loss_backward", multi_margin_loss_backward, argument(3)},
    {"multilabel_margin_loss_forward", multilabel_margin_loss_forward},
    {"multilabel_margin_loss_backward", multilabel_margin_loss_backward},
};

}  // namespace

std::span<const Row> loss_class_rows() { return kRows; }

}  // namespace tpu::lowering
