// Connectionist temporal classification: the forward-backward recursion over time, in log space.
// States are the target with blanks around every label: blank, l1, blank, l2, ..., blank.

#include <algorithm>
#include <limits>

#include "lowering/loss.h"

namespace tpu::lowering {

namespace hlo = stablehlo;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What both directions read.
struct Alignment {
  Value emissions;      // [T, N, S]: log probability of each state's label
  Value labels;         // s32 [N, S]
  Value may_skip;       // i1 [N, S]: the state may be entered from two states before
  Value input_lengths;  // s32 [N]
  Value last_state;     // s32 [N]: index of the final blank
  int64_t time, batch, states;
  bool batched;
};

Value constant_ints(Builder& builder, const Dims& values) {
  return builder.constant(std::span<const int64_t>(values),
                          TensorType{DType::kS32, {static_cast<int64_t>(values.size())}});
}

/// Index into the flat or padded targets of label `k` of every sample: s32 [N, K].
Value label_positions(Builder& builder, const Dims& lengths, const Dims& target_sizes, int64_t longest) {
  Dims starts;
  int64_t next = 0;
  for (int64_t length : lengths) {
    starts.push_back(next);
    next += target_sizes.size() == 2 ? target_sizes[1] : length;
  }
  TensorType type{DType::kS32, {static_cast<int64_t>(lengths.size()), longest}};
  Value position =
      hlo::add(broadcast_over(constant_ints(builder, starts), type.dims, {1}), hlo::iota(builder, type, 1));
  // Positions past a short target's end are never used; they only have to stay in range.
  return hlo::minimum(position, full_like(position, static_cast<double>(product(target_sizes) - 1)));
}

/// [N, S] labels: blank on even states, the target's label on odd ones.
Value interleave_blanks(Value labels, int64_t blank) {
  Value padding = labels.builder().constant(blank, TensorType{labels.dtype(), {}});
  return hlo::pad(labels, padding, {0, 1}, {0, 1}, {0, 1});
}

/// x moved by `count` states towards the end (or towards the start when negative), -inf or false moving in.
Value shift_states(Value x, int64_t count) {
  Value filler = x.dtype() == DType::kBool ? scalar(x.builder(), int64_t{0}, x.dtype())
                                           : scalar(x.builder(), -kInfinity, x.dtype());
  return hlo::pad(x, filler, {0, count}, {0, -count}, {0, 0});
}

/// Reads _ctc_loss's leading arguments: log_probs, targets, input_lengths, target_lengths, ..., blank.
Alignment read_alignment(const OpCall& call, size_t log_probs, size_t blank_argument) {
  Value scores = call.operand(log_probs, work_type(call));
  bool batched = scores.rank() == 3;
  if (!batched) scores = unsqueeze(scores, 1);
  Dims input_lengths = call.ints(log_probs + 2), target_lengths = call.ints(log_probs + 3);
  Builder& builder = call.builder();
  int64_t longest = 0, blank = call.integer(blank_argument);
  for (int64_t length : target_lengths) longest = std::max(longest, length);
  int64_t time = scores.dim(0), batch = scores.dim(1), classes = scores.dim(2), states = 2 * longest + 1;

  Value labels = builder.constant(blank, TensorType{DType::kS32, {batch, states}});
  if (longest > 0) {
    Value targets = call.tensor(log_probs + 1);
    Value positions = label_positions(builder, target_lengths, targets.dims(), longest);
    Value flat = hlo::convert(hlo::reshape(targets, {targets.type().numel()}), DType::kS32);
    hlo::GatherDims dims;
    dims.collapsed_slice_dims = {0};
    dims.start_index_map = {0};
    dims.index_vector_dim = 2;
    labels = interleave_blanks(hlo::gather(flat, positions, dims, {1}), blank);
  }
  // A repeated label needs the blank between: only different neighbours may skip it.
  Value state = hlo::iota(builder, labels.type(), 1);
  Value odd = eq(hlo::bit_and(state, full_like(state, 1)), 1.0);
  Value before = hlo::pad(labels, scalar(builder, blank, DType::kS32), {0, 2}, {0, -2}, {0, 0});
  Value may_skip = hlo::bit_and(odd, hlo::bit_and(ge(state, 3.0), ne(labels, before)));
  if (states == 1) may_skip = ne(labels, labels);

  const Value lengths = constant_ints(builder, target_lengths), last_state = hlo::add(lengths, lengths);
  const Value is_label = hlo::bit_and(odd, lt(state, broadcast_over(last_state, labels.dims(), {1})));
  const Value outside = hlo::bit_or(lt(labels, 0.0), ge(labels, static_cast<double>(classes)));
  call.check(reduce_axes(hlo::bit_and(is_label, outside), hlo::Reducer::kOr, {0, 1}, false), Code::kIndex,
             "a target is out of bounds: there are " + std::to_string(classes) + " classes");

  // emissions[t, n, s] = scores[t, n, labels[n, s]]
  hlo::GatherDims dims;
  dims.offset_dims = {0};
  dims.collapsed_slice_dims = {2};
  dims.operand_batching_dims = {1};
  dims.start_indices_batching_dims = {0};
  dims.start_index_map = {2};
  dims.index_vector_dim = 2;
  Value index = hlo::clamp(scalar(builder, int64_t{0}, DType::kS32), labels, scalar(builder, classes - 1, DType::kS32));
  Value emissions = hlo::gather(scores, index, dims, {time, 1, 1});
  return {emissions, labels, may_skip, constant_ints(builder, input_lengths), last_state, time, batch, states, batched};
}

/// log(exp(a) + exp(b) + exp(c)) where all three may be -inf.
Value log_sum(Value a, Value b, Value c) {
  Value largest = hlo::maximum(hlo::maximum(a, b), c);
  Value shift = hlo::select(eq(largest, -kInfinity), full_like(largest, 0), largest);
  auto part = [&](Value x) { return hlo::exponential(hlo::subtract(x, shift)); };
  return hlo::add(hlo::log(hlo::add(hlo::add(part(a), part(b)), part(c))), shift);
}

/// Row `t` of a [T, N, S] value, as [N, S].
Value at_time(Value x, Value t) {
  Value zero = full_like(t, 0);
  std::vector<Value> start = {t, zero, zero};
  return hlo::reshape(hlo::dynamic_slice(x, start, {1, x.dim(1), x.dim(2)}), {x.dim(1), x.dim(2)});
}

Value set_time(Value x, Value t, Value row) {
  Value zero = full_like(t, 0);
  std::vector<Value> start = {t, zero, zero};
  return hlo::dynamic_update_slice(x, hlo::reshape(row, {1, x.dim(1), x.dim(2)}), start);
}

/// Runs `step(t, previous row) -> row` over the given times; rows go to a [T, N, S] value.
template <typename Step>
Value scan_time(const Alignment& a, bool backwards, const Step& step) {
  Builder& builder = a.emissions.builder();
  Value all = full_like(a.emissions, -kInfinity);
  Value row = builder.constant(-kInfinity, TensorType{all.dtype(), {a.batch, a.states}});
  Value start = scalar(builder, backwards ? a.time - 1 : int64_t{0}, DType::kS32);
  std::vector<Value> init = {start, row, all};
  auto unfinished = [&](std::span<const Value> state) -> Values {
    return {backwards ? ge(state[0], 0.0) : lt(state[0], static_cast<double>(a.time))};
  };
  auto body = [&](std::span<const Value> state) -> Values {
    Value next = step(state[0], state[1]);
    return {add(state[0], backwards ? -1 : 1), next, set_time(state[2], state[0], next)};
  };
  return hlo::while_loop(init, unfinished, body)[2];
}

/// alpha[t, n, s]: log probability of all ways to be in state s at time t, emission included.
Value forward_scores(const Alignment& a) {
  Value state = hlo::iota(a.labels.builder(), a.labels.type(), 1);
  Value startable = hlo::bit_and(lt(state, 2.0), le(state, broadcast_over(a.last_state, state.dims(), {1})));
  return scan_time(a, false, [&](Value t, Value row) {
    Value emission = at_time(a.emissions, t);
    Value impossible = full_like(row, -kInfinity);
    Value skipped = hlo::select(a.may_skip, shift_states(row, 2), impossible);
    Value moved = hlo::add(log_sum(row, shift_states(row, 1), skipped), emission);
    Value first = hlo::select(startable, emission, impossible);
    return hlo::select(eq(t, 0.0), first, moved);
  });
}

/// beta[t, n, s]: log probability of all ways to finish from state s at time t, emission included.
Value backward_scores(const Alignment& a) {
  Value state = hlo::iota(a.labels.builder(), a.labels.type(), 1);
  Value last = broadcast_over(a.last_state, state.dims(), {1});
  Value final = hlo::bit_and(le(state, last), ge(state, add(last, -1)));
  // The state two further on must be one that may be entered by skipping.
  Value may_skip = shift_states(a.may_skip, -2);
  return scan_time(a, true, [&](Value t, Value row) {
    Value emission = at_time(a.emissions, t);
    Value impossible = full_like(row, -kInfinity);
    Value skipped = hlo::select(may_skip, shift_states(row, -2), impossible);
    Value moved = hlo::add(log_sum(row, shift_states(row, -1), skipped), emission);
    Value length = broadcast_over(a.input_lengths, state.dims(), {1});
    Value next_time = add(broadcast_to(t, state.dims()), 1);
    Value from_end = hlo::select(final, emission, impossible);
    Value inside = hlo::select(lt(next_time, length), moved, impossible);
    return hlo::select(eq(next_time, length), from_end, inside);
  });
}

/// -log of the total probability: the two final states at the last input time.
Value negative_log_likelihood(const Alignment& a, Value alpha) {
  Dims sizes = alpha.dims();
  Builder& builder = alpha.builder();
  TensorType index_type{DType::kS32, sizes};
  Value time = hlo::iota(builder, index_type, 0), state = hlo::iota(builder, index_type, 2);
  Value last = broadcast_over(a.last_state, sizes, {0, 2});
  Value at_end = eq(add(time, 1), broadcast_over(a.input_lengths, sizes, {0, 2}));
  Value final = hlo::bit_and(at_end, hlo::bit_and(le(state, last), ge(state, add(last, -1))));
  Value chosen = hlo::select(final, alpha, full_like(alpha, -kInfinity));
  Value largest = hlo::reduce(chosen, hlo::Reducer::kMaximum, {0, 2});
  Value shift = hlo::select(eq(largest, -kInfinity), full_like(largest, 0), largest);
  Value terms = hlo::exponential(hlo::subtract(chosen, broadcast_over(shift, sizes, {0, 2})));
  Value total = hlo::add(hlo::log(hlo::reduce(terms, hlo::Reducer::kAdd, {0, 2})), shift);
  // Without any input the empty target is certain and every other impossible.
  Value empty = hlo::select(eq(a.last_state, 0.0), full_like(total, 0), full_like(total, -kInfinity));
  return hlo::negate(hlo::select(eq(a.input_lengths, 0.0), empty, total));
}

/// _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) -> loss per sample, alpha
Values ctc_loss(const OpCall& call) {
  Alignment a = read_alignment(call, 0, 4);
  Value alpha = forward_scores(a);
  const TensorType& loss_type = call.result_type(0);
  Value loss = hlo::reshape(negative_log_likelihood(a, alpha), loss_type.dims);
  Value by_sample = hlo::transpose(alpha, {1, 0, 2});
  return {hlo::convert(loss, loss_type.dtype),
          hlo::reshape(hlo::convert(by_sample, call.result_type(1).dtype), call.result_type(1).dims)};
}

/// _ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, loss, alpha, blank, zero_infinity)
Values ctc_loss_backward(const OpCall& call) {
  Alignment a = read_alignment(call, 1, 7);
  DType dtype = work_type(call);
  Value alpha = hlo::reshape(call.operand(6, dtype), {a.batch, a.time, a.states});
  alpha = hlo::transpose(alpha, {1, 0, 2});
  Value beta = backward_scores(a);
  Value loss = hlo::reshape(call.operand(5, dtype), {a.batch});
  Value grad = broadcast_to(hlo::reshape(call.operand(0, dtype), call.operand(5, dtype).dims()), loss.dims());

  // Probability of each state at each time given the target; -inf minus -inf means impossible.
  Value joint = hlo::add(alpha, beta);
  Value posterior =
      hlo::exponential(hlo::add(hlo::subtract(joint, a.emissions), broadcast_over(loss, joint.dims(), {0, 2})));
  Value impossible_state = hlo::bit_or(eq(alpha, -kInfinity), eq(beta, -kInfinity));
  posterior = hlo::select(impossible_state, full_like(posterior, 0), posterior);

  Value scores = call.operand(1, dtype);
  if (!a.batched) scores = unsqueeze(scores, 1);
  // Summed by class: [T, N, S] x [N, S, C] -> [N, T, C].
  Dims map_sizes = {a.batch, a.states, scores.dim(2)};
  Value classes = hlo::iota(call.builder(), TensorType{DType::kS32, map_sizes}, 2);
  Value one_hot = hlo::convert(eq(classes, broadcast_over(a.labels, map_sizes, {2})), dtype);
  Value by_class = hlo::dot_general(posterior, one_hot, {{1}, {0}, {2}, {1}}, dtype);
  Value expected = hlo::transpose(by_class, {1, 0, 2});

  Value slope = hlo::subtract(hlo::exponential(scores), expected);
  Value scaled = hlo::multiply(slope, broadcast_over(grad, slope.dims(), {0, 2}));
  Value time = hlo::iota(call.builder(), TensorType{DType::kS32, slope.dims()}, 0);
  Value used = lt(time, broadcast_over(a.input_lengths, slope.dims(), {0, 2}));
  Value impossible = broadcast_over(eq(loss, kInfinity), slope.dims(), {0, 2});
  if (call.boolean(8)) {
    used = hlo::bit_and(used, hlo::logical_not(impossible));
  } else {
    scaled = hlo::select(impossible, full_like(scaled, std::numeric_limits<double>::quiet_NaN()), scaled);
  }
  return finish(call, hlo::reshape(hlo::select(used, scaled, full_like(scaled, 0)), call.result_type().dims));
}

constexpr Row kRows[] = {
    {"_ctc_loss", ctc_loss},
    {"_ctc_loss_backward", ctc_loss_backward},
};

}  // namespace

std::span<const Row> loss_ctc_rows() { return kRows; }

}  // namespace tpu::lowering
