// Scaled dot product attention and its gradients, from logsumexp as in flash attention: the backward
// operator recomputes the probabilities instead of keeping them.
//
// Query heads that share a key head (grouped-query attention) stand in the row dim of one product, so keys
// and values are never repeated. Scores, softmax and sums are float32 (float64 for float64 operands);
// products read their operands in the tensors' own dtype. Scores that would not fit comfortably in memory
// are computed for a block of query rows at a time.
//
// Results of the forward row: output, logsumexp, philox_seed, philox_offset (int64, 0-d).

#include <cmath>

#include "lowering/linear_algebra_loop.h"
#include "lowering/philox.h"
#include "lowering/table.h"

namespace tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: the operations are this file's vocabulary

/// Sizes and switches of one call.
struct Problem {
  int64_t batch, heads, key_heads, queries, keys, width, value_width;
  DType dtype, accumulate;
  bool causal;
  double dropout;
  int64_t block;  // query rows computed at a time
  int64_t blocks() const { return (queries + block - 1) / block; }
  int64_t padded_queries() const { return blocks() * block; }
};

/// Scores of more elements than this are computed in blocks.
constexpr int64_t kScoresLimit = int64_t{1} << 26;

/// Rows per block: all when the scores fit, else equal blocks of at least 8 rows.
int64_t block_rows(int64_t queries, int64_t scores_per_row) {
  if (queries * scores_per_row <= kScoresLimit) return std::max<int64_t>(queries, 1);
  const int64_t wanted = std::max<int64_t>(kScoresLimit / std::max<int64_t>(scores_per_row, 1), 8);
  const int64_t count = (queries + wanted - 1) / wanted;
  return (queries + count - 1) / count;
}

Problem problem_of(Value q, Value k, Value v, double dropout, bool causal) {
  const size_t rank = q.rank();
  if (rank != 3 && rank != 4) throw Error(Code::kInvalidArgument, "attention: query must have 3 or 4 dims");
  const auto at = [](Value x, size_t from_end) { return x.dim(x.rank() - from_end); };
  Problem p{.batch = rank == 4 ? q.dim(0) : 1,
            .heads = at(q, 3),
            .key_heads = at(k, 3),
            .queries = at(q, 2),
            .keys = at(k, 2),
            .width = at(q, 1),
            .value_width = at(v, 1),
            .dtype = q.dtype(),
            .accumulate = compute_type(q.dtype()),
            .causal = causal,
            .dropout = dropout,
            .block = 1};
  if (p.key_heads == 0 || p.heads % p.key_heads != 0 || at(v, 3) != p.key_heads) {
    throw Error(Code::kInvalidArgument, "attention: the number of query heads (" + std::to_string(p.heads) +
                                            ") must be a multiple of the number of key and value heads (" +
                                            std::to_string(p.key_heads) + ", " + std::to_string(at(v, 3)) + ")");
  }
  p.block = block_rows(p.queries, p.batch * p.heads * p.keys);
  return p;
}

/// What scores are made of, besides the query: everything is carried into loops.
struct Context {
  Value k, v;          // [B, Hk, Sk, D], [B, Hk, Sk, Dv]
  Value scale;         // 0-d, accumulation type
  Value bias;          // undefined, or rank 4 with dims that are 1 or full; query dim padded to whole blocks
  Value seed, offset;  // undefined without dropout
  Value present;       // number of keys, 0-d s64; undefined where it is that of k
};

std::vector<Value> pack(const Context& c) {
  std::vector<Value> values{c.k, c.v, c.scale};
  if (c.bias.defined()) values.push_back(c.bias);
  if (c.seed.defined()) values.insert(values.end(), {c.seed, c.offset});
  if (c.present.defined()) values.push_back(c.present);
  return values;
}

/// The inverse of pack(); `like` tells which values are there. Returns how many were taken.
size_t unpack(std::span<const Value> values, const Context& like, Context* out) {
  size_t next = 0;
  *out = Context{values[0], values[1], values[2], {}, {}, {}, {}};
  next = 3;
  if (like.bias.defined()) out->bias = values[next++];
  if (like.seed.defined()) {
    out->seed = values[next++];
    out->offset = values[next++];
  }
  if (like.present.defined()) out->present = values[next++];
  return next;
}

/// [B, H, R, N] -> [B * Hk, H / Hk * R, N]: one matrix per key head.
Value by_key_head(const Problem& p, Value x) {
  const int64_t group = p.heads / p.key_heads;
  return reshape(x, {p.batch * p.key_heads, group * x.dim(2), x.dim(3)});
}

/// [B, Hk, S, N] -> [B * Hk, S, N].
Value flat_heads(Value x) { return reshape(x, {x.dim(0) * x.dim(1), x.dim(2), x.dim(3)}); }

Value by_head(const Problem& p, Value x, int64_t rows) { return reshape(x, {p.batch, p.heads, rows, x.dim(2)}); }

const DotDims kRowsByRows{{0}, {0}, {2}, {2}};        // a b^T
const DotDims kRowsByColumns{{0}, {0}, {2}, {1}};     // a b
const DotDims kColumnsByColumns{{0}, {0}, {1}, {1}};  // a^T b

/// `rows` query rows from `first` (0-d i32) of a rank-4 value whose dim 2 is full, or the value itself.
Value rows_of_block(const Problem& p, Value x, Value first) {
  if (x.dim(2) == 1 || x.dim(2) == p.block) return x;
  const Value zero = scalar(x.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {zero, zero, first, zero};
  return dynamic_slice(x, start, {x.dim(0), x.dim(1), p.block, x.dim(3)});
}

/// Scores [B, H, R, Sk] of one block of query rows, with bias and causal mask.
Value scores_of(const Problem& p, const Context& c, Value q, Value first) {
  const Value product = dot_general(by_key_head(p, q), flat_heads(c.k), kRowsByRows, p.accumulate);
  Value s = by_head(p, product, p.block);
  s = multiply(s, broadcast_to(c.scale, s.dims()));
  if (c.bias.defined()) {
    const Value bias = convert(rows_of_block(p, c.bias, first), p.accumulate);
    s = add(s, broadcast_to(bias, s.dims()));
  }
  Builder& builder = s.builder();
  if (c.present.defined()) {
    const Value key = iota(builder, {DType::kS64, s.dims()}, 3);
    s = select(compare(key, broadcast_to(c.present, s.dims()), Compare::kLt), s, full_like(s, -INFINITY));
  }
  if (!p.causal) return s;
  const Dims mask{p.block, p.keys};
  const Value row = add(index_along(builder, mask, 0), broadcast_to(first, mask));
  const Value visible = compare(index_along(builder, mask, 1), row, Compare::kLe);
  return select(broadcast_to(visible, s.dims()), s, full_like(s, -INFINITY));
}

/// Which probabilities of a block dropout keeps: i1 [B, H, R, Sk]. A row of keys takes ceil(Sk / 4) blocks of
/// Philox, counted through the upper words so that no other draw of the generator meets them.
Value kept(const Problem& p, const Context& c, Value first) {
  Builder& builder = first.builder();
  const int64_t per_row = (p.keys + 3) / 4, matrices = p.batch * p.heads;
  const Dims sizes{matrices, p.block, per_row};
  const TensorType wide{DType::kU64, sizes};
  const Value matrix = iota(builder, wide, 0), column = iota(builder, wide, 2);
  const Value row = add(iota(builder, wide, 1), broadcast_to(convert(first, DType::kU64), sizes));
  const auto times = [&](Value x, int64_t n) { return multiply(x, builder.constant(n, wide)); };
  const Value number = add(times(add(times(matrix, p.queries), row), per_row), column);
  const Value counter = add(number, builder.constant(int64_t{1}, wide));
  const Value half = scalar(builder, int64_t{32}, DType::kU64);
  const auto low = [](Value x) { return convert(x, DType::kU32); };
  const auto high = [&](Value x) { return convert(shift_right_logical(x, broadcast_to(half, x.dims())), DType::kU32); };
  const auto spread = [&](Value x) { return broadcast_to(x, sizes); };
  const PhiloxWords counters{spread(low(c.offset)), spread(high(c.offset)), low(counter), high(counter)};
  PhiloxWords words = philox(counters, c.seed);
  for (Value& word : words) word = reshape(word, {product(sizes)});
  const Value bits = interleave(words, {matrices, p.block, per_row * 4});
  const Value used = slice(bits, {0, 0, 0}, {matrices, p.block, p.keys}, {1, 1, 1});
  // A draw below p of the whole range drops.
  const auto threshold = static_cast<int64_t>(std::min(p.dropout * 4294967296.0, 4294967295.0));
  const Value keep = compare(used, builder.constant(threshold, used.type()), Compare::kGe);
  return reshape(keep, {p.batch, p.heads, p.block, p.keys});
}

double dropout_scale(const Problem& p) { return p.dropout >= 1 ? 0.0 : 1.0 / (1.0 - p.dropout); }

/// Masked and scaled probabilities (or their gradient) under dropout.
Value drop(const Problem& p, Value x, Value keep) {
  const Value scaled = multiply(x, full_like(x, dropout_scale(p)));
  return select(keep, scaled, full_like(x, 0));
}

/// Row maximum [B, H, R] with 0 where every key is masked, so that exp() of the difference is 0 there.
Value safe_maximum(Value s) {
  const Value m = reduce(s, Reducer::kMaximum, {3});
  return select(compare(m, full_like(m, -INFINITY), Compare::kEq), full_like(m, 0), m);
}

Value over_keys(Value x, Value like) { return broadcast_in_dim(x, like.dims(), {0, 1, 2}); }

/// Output [B, H, R, Dv] in the operands' dtype and logsumexp [B, H, R] of one block.
std::pair<Value, Value> attend(const Problem& p, const Context& c, Value q, Value first) {
  const Value s = scores_of(p, c, q, first);
  const Value m = safe_maximum(s);
  Value e = exponential(subtract(s, over_keys(m, s)));
  const Value sum = reduce(e, Reducer::kAdd, {3});
  if (p.dropout > 0) e = drop(p, e, kept(p, c, first));
  const Value weights = convert(by_key_head(p, e), p.dtype);
  const Value mixed = by_head(p, dot_general(weights, flat_heads(c.v), kRowsByColumns, p.accumulate), p.block);
  // A row without any visible key is 0, as PyTorch's safe softmax makes it.
  const Value divisor = select(compare(sum, full_like(sum, 0), Compare::kEq), full_like(sum, 1), sum);
  const Value output = stablehlo::divide(mixed, over_keys(divisor, mixed));
  return {convert(output, p.dtype), add(m, log(sum))};
}

/// Dim 2 of a rank-4 value filled up to whole blocks.
Value pad_rows(const Problem& p, Value x, double fill = 0) {
  const int64_t missing = p.padded_queries() - x.dim(2);
  if (missing == 0) return x;
  return pad(x, scalar(x.builder(), fill, x.dtype()), {0, 0, 0, 0}, {0, 0, missing, 0}, {0, 0, 0, 0});
}

Value first_rows(Value x, int64_t rows) {
  if (x.dim(2) == rows) return x;
  return slice(x, {0, 0, 0, 0}, {x.dim(0), x.dim(1), rows, x.dim(3)}, {1, 1, 1, 1});
}

Value put_rows(Value into, Value rows, Value first) {
  const Value zero = scalar(into.builder(), int64_t{0}, DType::kS32);
  const Value start[] = {zero, zero, first, zero};
  return dynamic_update_slice(into, rows, start);
}

/// Rank-3 operands get a batch of 1.
Value rank_four(Value x) { return x.rank() == 4 ? x : unsqueeze(x, 0); }

/// Bias of rank 4; its query dim, when not 1, is padded to whole blocks.
Value bias_operand(const Problem& p, Value bias) {
  Dims sizes = bias.dims();
  while (sizes.size() < 4) sizes.insert(0, 1);
  bias = reshape(bias, sizes);
  return bias.dim(2) == 1 ? bias : pad_rows(p, bias);
}

Context context_of(const OpCall& call, const Problem& p, size_t key, size_t bias, size_t scale) {
  const Value k = call.tensor(key), v = call.tensor(key + 1);
  Context c{rank_four(k), rank_four(v), {}, {}, {}, {}, {}};
  c.scale = call.has(scale) ? call.operand(scale, p.accumulate)
                            : scalar(call.builder(), 1.0 / std::sqrt(static_cast<double>(p.width)), p.accumulate);
  if (call.has(bias)) c.bias = bias_operand(p, call.tensor(bias));
  c.present = call.present_size(key, static_cast<int64_t>(k.rank()) - 2).value_or(Value());
  return c;
}

Value zeros(Builder& builder, DType dtype, const Dims& sizes) {
  return builder.constant(0.0, TensorType{dtype, sizes});
}

std::pair<Value, Value> attend_all(const Problem& p, const Context& c, Value q) {
  Builder& builder = q.builder();
  if (p.blocks() == 1) return attend(p, c, q, scalar(builder, int64_t{0}, DType::kS32));
  const int64_t rows = p.padded_queries();
  const Value state[] = {zeros(builder, p.dtype, {p.batch, p.heads, rows, p.value_width}),
                         zeros(builder, p.accumulate, {p.batch, p.heads, rows, 1})};
  std::vector<Value> fixed = pack(c);
  fixed.push_back(pad_rows(p, q));
  const Value count = scalar(builder, p.blocks(), DType::kS32);
  const auto last = counted_loop(count, state, fixed, [&](Value index, auto carried, auto rest) {
    Context inner;
    const size_t taken = unpack(rest, c, &inner);
    const Value first = multiply(index, scalar(index.builder(), p.block, DType::kS32));
    const auto [output, lse] = attend(p, inner, rows_of_block(p, rest[taken], first), first);
    return std::vector<Value>{put_rows(carried[0], output, first), put_rows(carried[1], unsqueeze(lse, 3), first)};
  });
  return {first_rows(last[0], p.queries), squeeze(first_rows(last[1], p.queries), 3)};
}

/// query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale.
std::vector<Value> attention(const OpCall& call) {
  const Value q = rank_four(call.tensor(0));
  const Problem p = problem_of(q, rank_four(call.tensor(1)), rank_four(call.tensor(2)), call.real(4), call.boolean(5));
  Context c = context_of(call, p, 1, 3, 7);
  Builder& builder = call.builder();
  const TensorType number{DType::kS64, {}};
  Value seed = builder.constant(int64_t{0}, number), offset = seed;
  if (p.dropout > 0) {
    c.seed = call.random().seed;
    c.offset = call.random().offset;
    seed = bitcast_convert(c.seed, DType::kS64);
    offset = bitcast_convert(c.offset, DType::kS64);
  }
  const auto [output, lse] = attend_all(p, c, q);
  const TensorType& lse_type = call.result_type(1);
  return {reshape(output, call.result_type(0).dims), reshape(convert(lse, lse_type.dtype), lse_type.dims), seed,
          offset};
}

// ---- gradients

/// Gradients of one block: query rows in the operands' dtype; keys, values [B * Hk, Sk, .] and scores
/// [B, H, R, Sk] in the accumulation type.
struct BlockGradients {
  Value q, k, v, scores;
};

/// The forward results that a block of rows needs, rank 4: gradient and value of the output, logsumexp.
struct BlockInputs {
  Value q, grad, out, lse;
};

Value probabilities(const Problem& p, Value s, Value lse) {
  if (p.accumulate == DType::kF64) {
    // The kept logsumexp is float32; float64 gradients need the sums at their own precision.
    const Value e = exponential(subtract(s, over_keys(safe_maximum(s), s)));
    const Value sum = reduce(e, Reducer::kAdd, {3});
    const Value divisor = select(compare(sum, full_like(sum, 0), Compare::kEq), full_like(sum, 1), sum);
    return stablehlo::divide(e, over_keys(divisor, e));
  }
  const Value kept_lse = reshape(lse, {p.batch, p.heads, p.block});
  const Value none = compare(kept_lse, full_like(kept_lse, -INFINITY), Compare::kEq);
  return exponential(subtract(s, over_keys(select(none, full_like(kept_lse, 0), kept_lse), s)));
}

BlockGradients block_gradients(const Problem& p, const Context& c, const BlockInputs& in, Value first) {
  const Value probability = probabilities(p, scores_of(p, c, in.q, first), in.lse);
  const Value grad = by_key_head(p, in.grad);
  const Value keep = p.dropout > 0 ? kept(p, c, first) : Value();
  const Value dropped = keep.defined() ? drop(p, probability, keep) : probability;
  const Value weights = convert(by_key_head(p, dropped), p.dtype);
  const Value grad_v = dot_general(weights, grad, kColumnsByColumns, p.accumulate);

  Value grad_p = by_head(p, dot_general(grad, flat_heads(c.v), kRowsByRows, p.accumulate), p.block);
  if (keep.defined()) grad_p = drop(p, grad_p, keep);
  const Value both = multiply(convert(in.grad, p.accumulate), convert(in.out, p.accumulate));
  const Value delta = reduce(both, Reducer::kAdd, {3});
  const Value grad_s = multiply(probability, subtract(grad_p, over_keys(delta, grad_p)));
  const Value scaled = by_key_head(p, convert(multiply(grad_s, broadcast_to(c.scale, grad_s.dims())), p.dtype));
  const Value grad_q = dot_general(scaled, flat_heads(c.k), kRowsByColumns, p.accumulate);
  const Value grad_k = dot_general(scaled, by_key_head(p, in.q), kColumnsByColumns, p.accumulate);
  return {convert(by_head(p, grad_q, p.block), p.dtype), grad_k, grad_v, grad_s};
}

/// Gradients of all rows; `scores` holds the bias gradient, summed to the bias's own dims.
BlockGradients all_gradients(const Problem& p, const Context& c, const BlockInputs& in, bool wants_bias) {
  Builder& builder = in.q.builder();
  if (p.blocks() == 1) {
    BlockGradients g = block_gradients(p, c, in, scalar(builder, int64_t{0}, DType::kS32));
    g.scores = wants_bias ? sum_to(g.scores, c.bias.dims()) : Value();
    return g;
  }
  const int64_t matrices = p.batch * p.key_heads;
  std::vector<Value> state{zeros(builder, p.dtype, {p.batch, p.heads, p.padded_queries(), p.width}),
                           zeros(builder, p.accumulate, {matrices, p.keys, p.width}),
                           zeros(builder, p.accumulate, {matrices, p.keys, p.value_width})};
  if (wants_bias) state.push_back(zeros(builder, p.accumulate, c.bias.dims()));
  std::vector<Value> fixed = pack(c);
  // Added rows get an infinite logsumexp: their probabilities are 0.
  fixed.insert(fixed.end(),
               {pad_rows(p, in.q), pad_rows(p, in.grad), pad_rows(p, in.out), pad_rows(p, in.lse, INFINITY)});
  const Value count = scalar(builder, p.blocks(), DType::kS32);
  const auto last = counted_loop(count, state, fixed, [&](Value index, auto carried, auto rest) {
    Context inner;
    const size_t at = unpack(rest, c, &inner);
    const Value first = multiply(index, scalar(index.builder(), p.block, DType::kS32));
    const auto rows = [&](size_t k) { return rows_of_block(p, rest[at + k], first); };
    const BlockGradients g = block_gradients(p, inner, {rows(0), rows(1), rows(2), rows(3)}, first);
    std::vector<Value> next{put_rows(carried[0], g.q, first), add(carried[1], g.k), add(carried[2], g.v)};
    if (!wants_bias) return next;
    Dims sizes = inner.bias.dims();
    const bool per_row = sizes[2] != 1;
    if (per_row) sizes[2] = p.block;
    const Value part = sum_to(g.scores, sizes);
    next.push_back(per_row ? put_rows(carried[3], part, first) : add(carried[3], part));
    return next;
  });
  return {first_rows(last[0], p.queries), last[1], last[2], wants_bias ? last[3] : Value()};
}

/// grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
/// dropout_p, is_causal, philox_seed, philox_offset, scale.
std::vector<Value> attention_backward(const OpCall& call) {
  const Value q = rank_four(call.tensor(1));
  const Problem p =
      problem_of(q, rank_four(call.tensor(2)), rank_four(call.tensor(3)), call.real(12), call.boolean(13));
  Context c = context_of(call, p, 2, 4, 16);
  if (p.dropout > 0) {
    c.seed = bitcast_convert(call.tensor(14), DType::kU64);
    c.offset = bitcast_convert(call.tensor(15), DType::kU64);
  }
  const std::vector<bool> wanted = call.booleans(5);
  const bool wants_bias = wanted[3] && c.bias.defined();
  const Value lse = reshape(convert(call.tensor(7), p.accumulate), {p.batch, p.heads, p.queries, 1});
  const BlockInputs in{q, rank_four(call.tensor(0)), rank_four(call.tensor(6)), lse};
  const BlockGradients g = all_gradients(p, c, in, wants_bias);
  const auto result = [&](size_t k, Value x) {
    return reshape(convert(x, call.result_type(k).dtype), call.result_type(k).dims);
  };
  std::vector<Value> results(4);
  if (wanted[0]) results[0] = result(0, g.q);
  if (wanted[1]) results[1] = result(1, g.k);
  if (wanted[2]) results[2] = result(2, g.v);
  if (wants_bias) {
    const Value rows = c.bias.dim(2) == 1 ? g.scores : first_rows(g.scores, p.queries);
    results[3] = result(3, rows);
  }
  return results;
}

constexpr uint32_t kForwardStatic = 1u << 4;    // dropout_p
constexpr uint32_t kBackwardStatic = 1u << 12;  // dropout_p

const Row kRows[] = {
    {.name = "_scaled_dot_product_fused_attention_overrideable",
     .lower = attention,
     .static_args = kForwardStatic,
     .random_factor = 1,
     .heavy = true},
    {.name = "_scaled_dot_product_fused_attention_overrideable_backward",
     .lower = attention_backward,
     .static_args = kBackwardStatic,
     .heavy = true},
};

}  // namespace

std::span<const Row> attention_rows() { return kRows; }

}  // namespace tpu::lowering
