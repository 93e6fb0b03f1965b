// Rejection samplers: gamma, Dirichlet, Poisson, binomial. Each is one loop over all elements at once that ends
// when every element has accepted. Round r of element e draws the block with counter words (offset + e, r), so
// how long one element takes does not change the numbers of another. Draws have 32 bits, float64 included.

#include <cmath>
#include <functional>

#include "lowering/indexing.h"
#include "lowering/philox.h"

namespace tpu::lowering {

using stablehlo::Compare;

namespace {

using Results = std::vector<Value>;

/// One element's four draws of a round.
struct Draws {
  PhiloxWords words;

  /// In (0, 1), strictly.
  Value uniform(size_t i, DType dtype) const { return convert(open_uniform_from_bits(words[i]), dtype); }
  /// Standard normal, from words i and i + 1.
  Value normal(size_t i, DType dtype) const { return convert(normal_from_bits(words[i], words[i + 1]), dtype); }
};

Value number(Value like, double value) { return full_like(like, value); }
Value less(Value a, Value b) { return compare(a, b, Compare::kLt); }
Value at_most(Value a, Value b) { return compare(a, b, Compare::kLe); }
Value square(Value x) { return multiply(x, x); }

/// Runs `round` until every element is done. `state` holds the loop's values, the first being the i1 done mask;
/// `round` maps (state, draws) to the new state. Elements that are done must be left alone by `round`.
using Round = std::function<std::vector<Value>(std::span<const Value> state, const Draws& draws)>;

std::vector<Value> until_done(const RandomState& random, std::vector<Value> state, const Round& round) {
  Builder& builder = state[0].builder();
  const int64_t count = state[0].dim(0);
  state.insert(state.begin(), builder.constant(int64_t{0}, {DType::kU32, {}}));
  auto last = stablehlo::while_loop(
      state, [](std::span<const Value> s) { return std::vector<Value>{any_true(logical_not(s[1]))}; },
      [&](std::span<const Value> s) {
        const Draws draws{philox_blocks(random, count, s[0])};
        std::vector<Value> next = round(s.subspan(1), draws);
        next.insert(next.begin(), add(s[0], number(s[0], 1)));
        return next;
      });
  last.erase(last.begin());
  return last;
}

/// Result tensors as flat values of the compute type.
Value flat_operand(const OpCall& call, size_t i, DType dtype) {
  const Value x = broadcast_to(call.operand(i, dtype), call.result_type().dims);
  return reshape(x, {x.type().numel()});
}

Results finish(const OpCall& call, Value x) {
  return {reshape(convert(x, call.result_type().dtype), call.result_type().dims)};
}

Value is_nan(Value x) { return compare(x, x, Compare::kNe); }

// ---- gamma

/// Standard gamma numbers of shape `alpha` [n] by Marsaglia and Tsang (2000).
Value gamma_numbers(const RandomState& random, Value alpha) {
  const DType dtype = alpha.dtype();
  const Value one = number(alpha, 1);
  const Value small = less(alpha, one);
  const Value boosted = select(small, add(alpha, one), alpha);
  const Value d = subtract(boosted, number(alpha, 1.0 / 3));
  const Value c = divide(one, sqrt(multiply(d, number(d, 9))));
  // alpha = 0 (and NaN) cannot be accepted: their results are set below.
  const Value degenerate = bit_or(is_nan(alpha), at_most(alpha, number(alpha, 0)));
  const auto last = until_done(
      random, {degenerate, number(alpha, 0), one},
      [&](std::span<const Value> s, const Draws& draws) -> std::vector<Value> {
        const Value x = draws.normal(0, dtype);
        const Value u = draws.uniform(2, dtype);
        const Value y = add(one, multiply(c, x));
        const Value v = multiply(square(y), y);
        const Value xx = square(x);
        const Value squeeze = less(u, subtract(one, multiply(number(u, 0.0331), square(xx))));
        const Value bound = add(multiply(number(xx, 0.5), xx), multiply(d, add(subtract(one, v), log(v))));
        const Value good = bit_and(less(number(y, 0), y), bit_or(squeeze, less(log(u), bound)));
        const Value take = bit_and(good, logical_not(s[0]));
        // A shape below 1 is the next one up times u^(1/alpha), u from the accepted round.
        return {bit_or(s[0], good), select(take, multiply(d, v), s[1]), select(take, draws.uniform(3, dtype), s[2])};
      });
  const Value boost = select(small, exponential(divide(log(last[2]), alpha)), one);
  const Value smallest = number(alpha, dtype == DType::kF64 ? 2.2250738585072014e-308 : 1.1754943508222875e-38);
  const Value product = select(at_most(alpha, number(alpha, 0)), number(alpha, 0), multiply(last[1], boost));
  return select(is_nan(alpha), alpha, maximum(product, smallest));
}

Results lower_standard_gamma(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  return finish(call, gamma_numbers(call.random(), flat_operand(call, 0, compute_type(type.dtype))));
}

/// Gamma numbers normalised over the last dim.
Results lower_sample_dirichlet(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const Value gamma = gamma_numbers(call.random(), flat_operand(call, 0, compute_type(type.dtype)));
  const Value grouped = reshape(gamma, type.dims);
  const auto axis = static_cast<int64_t>(type.dims.size()) - 1;
  const Value total = reduce(grouped, stablehlo::Reducer::kAdd, {axis});
  return finish(call, divide(grouped, broadcast_over(total, type.dims, {axis})));
}

// ---- log probabilities without cancellation (Loader, "Fast and accurate computation of binomial
//      probabilities", 2000): the naive k log(l) - l - lgamma(k + 1) loses all digits for large l

/// ln(k!) minus Stirling's formula, for k >= 1.
Value stirling_error(Value k) {
  const Value inverse = divide(number(k, 1), k);
  const Value squared = square(inverse);
  Value sum = number(k, 1.0 / 1260);
  sum = subtract(multiply(sum, squared), number(k, 1.0 / 360));
  sum = add(multiply(sum, squared), number(k, 1.0 / 12));
  return multiply(sum, inverse);
}

/// x ln(x / m) + m - x for x, m > 0.
Value deviance(Value x, Value m) {
  const Value difference = subtract(x, m);
  const Value ratio = divide(difference, add(x, m));
  const Value squared = square(ratio);
  // (x - m) v + 2 x (v^3 / 3 + v^5 / 5 + ...) with v = (x - m) / (x + m)
  Value series = number(x, 1.0 / 13);
  for (int power = 11; power >= 3; power -= 2) series = add(multiply(series, squared), number(x, 1.0 / power));
  series = multiply(multiply(series, squared), multiply(ratio, multiply(x, number(x, 2))));
  const Value near = add(multiply(difference, ratio), series);
  const Value plain = subtract(multiply(x, log(divide(x, m))), difference);
  return select(less(abs(ratio), number(ratio, 0.1)), near, plain);
}

/// ln of the Poisson probability of k >= 0 at rate l.
Value log_poisson(Value k, Value l) {
  const Value safe = maximum(k, number(k, 1));
  const Value root = multiply(log(multiply(safe, number(k, 2 * M_PI))), number(k, 0.5));
  const Value usual = negate(add(add(stirling_error(safe), deviance(safe, l)), root));
  return select(less(k, number(k, 0.5)), negate(l), usual);
}

/// ln of the binomial probability of k, 0 <= k <= n, up to a constant of n.
Value log_binomial(Value k, Value n, Value p) {
  const auto term = [](Value x, Value mean) {
    const Value safe = maximum(x, number(x, 1));
    const Value usual = add(add(stirling_error(safe), deviance(safe, mean)), multiply(log(safe), number(x, 0.5)));
    // At 0 the factorial and the power are 1: what is left of the sum is the mean, less the root that
    // Stirling's formula has in the other terms.
    return select(less(x, number(x, 0.5)), subtract(mean, number(x, 0.5 * std::log(2 * M_PI))), usual);
  };
  const Value q = subtract(number(p, 1), p);
  return negate(add(term(k, multiply(n, p)), term(subtract(n, k), multiply(n, q))));
}

// ---- Poisson

/// Accepted element of transformed rejection: where, and its value.
struct Candidate {
  Value good, value;
};

/// Hoermann's PTRS (1993) for rates of 10 and more.
Candidate poisson_candidate(Value rate, const Draws& draws) {
  const DType dtype = rate.dtype();
  const Value u = subtract(draws.uniform(0, dtype), number(rate, 0.5));
  const Value v = draws.uniform(1, dtype);
  const Value b = add(multiply(sqrt(rate), number(rate, 2.53)), number(rate, 0.931));
  const Value a = add(multiply(b, number(b, 0.02483)), number(b, -0.059));
  const Value us = subtract(number(u, 0.5), abs(u));
  const Value slope = add(divide(multiply(a, number(a, 2)), us), b);
  const Value k = floor(add(add(multiply(slope, u), rate), number(rate, 0.43)));
  const Value limit = subtract(number(b, 0.9277), divide(number(b, 3.6224), subtract(b, number(b, 2))));
  const Value quick = bit_and(at_most(number(us, 0.07), us), at_most(v, limit));
  const Value inverse_alpha = add(divide(number(b, 1.1328), subtract(b, number(b, 3.4))), number(b, 1.1239));
  const Value density = divide(multiply(v, inverse_alpha), add(divide(a, square(us)), b));
  const Value below = at_most(log(density), log_poisson(k, rate));
  const Value outside = bit_or(less(k, number(k, 0)), bit_and(less(us, number(us, 0.013)), less(us, v)));
  return {bit_or(quick, bit_and(below, logical_not(outside))), k};
}

Results lower_poisson(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const DType dtype = compute_type(type.dtype);
  const Value rate = flat_operand(call, 0, dtype);
  const Value invalid = logical_not(at_most(number(rate, 0), rate));  // NaN too
  call.check(any_true(invalid), Code::kInvalidArgument, "invalid Poisson rate, expected rate to be non-negative");
  const Value large = at_most(number(rate, 10), rate);
  const Value safe = maximum(rate, number(rate, 10));
  const Value target = exponential(negate(select(large, number(rate, 0), rate)));
  // Below 10: the number of uniform factors until their product falls under exp(-rate), four a round.
  const auto last = until_done(call.random(), {invalid, number(rate, 0), number(rate, 1)},
                               [&](std::span<const Value> s, const Draws& draws) -> std::vector<Value> {
                                 Value done = s[0], count = s[1], product = s[2];
                                 for (size_t i = 0; i < 4; ++i) {
                                   const Value running = bit_and(logical_not(done), logical_not(large));
                                   product = select(running, multiply(product, draws.uniform(i, dtype)), product);
                                   const Value more = less(target, product);
                                   count = select(bit_and(running, more), add(count, number(count, 1)), count);
                                   done = bit_or(done, bit_and(running, logical_not(more)));
                                 }
                                 const Candidate candidate = poisson_candidate(safe, draws);
                                 const Value take = bit_and(bit_and(candidate.good, large), logical_not(s[0]));
                                 return {bit_or(done, take), select(take, candidate.value, count), product};
                               });
  return finish(call, last[1]);
}

// ---- binomial

/// Hoermann's BTRS (1993) for n p of 10 and more, p at most 1/2.
Candidate binomial_candidate(Value n, Value p, const Draws& draws) {
  const DType dtype = n.dtype();
  const Value mean = multiply(n, p);
  const Value spread = sqrt(multiply(mean, subtract(number(p, 1), p)));
  const Value b = add(multiply(spread, number(n, 2.53)), number(n, 1.15));
  const Value a = add(add(multiply(b, number(b, 0.0248)), number(b, -0.0873)), multiply(p, number(p, 0.01)));
  const Value u = subtract(draws.uniform(0, dtype), number(n, 0.5));
  const Value v = draws.uniform(1, dtype);
  const Value us = subtract(number(u, 0.5), abs(u));
  const Value slope = add(divide(multiply(a, number(a, 2)), us), b);
  const Value k = floor(add(add(multiply(slope, u), mean), number(n, 0.5)));
  const Value inside = bit_and(at_most(number(k, 0), k), at_most(k, n));
  const Value limit = subtract(number(b, 0.92), divide(number(b, 4.2), b));
  const Value quick = bit_and(at_most(number(us, 0.07), us), at_most(v, limit));
  const Value alpha = multiply(add(divide(number(b, 5.1), b), number(b, 2.83)), spread);
  const Value density = divide(multiply(v, alpha), add(divide(a, square(us)), b));
  const Value mode = floor(multiply(add(n, number(n, 1)), p));
  const Value clamped = clamp(number(k, 0), k, n);
  const Value bound = subtract(log_binomial(clamped, n, p), log_binomial(mode, n, p));
  return {bit_and(inside, bit_or(quick, at_most(log(density), bound))), k};
}

Results lower_binomial(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (type.numel() == 0) return {call.builder().constant(0.0, type)};
  const DType dtype = compute_type(type.dtype);
  const Value n = flat_operand(call, 0, dtype);
  const Value given = flat_operand(call, 1, dtype);
  const Value flip = less(number(given, 0.5), given);
  const Value p = select(flip, subtract(number(given, 1), given), given);
  const Value undefined = bit_or(is_nan(n), is_nan(p));
  const Value nothing = bit_or(at_most(n, number(n, 0)), at_most(p, number(p, 0)));
  const Value large = at_most(number(n, 10), multiply(n, p));
  const Value safe_n = select(large, n, number(n, 40));
  const Value safe_p = select(large, p, number(p, 0.5));
  const Value log_miss = log_plus_one(negate(select(large, number(p, 0.5), p)));
  // Small n p: how many geometric waiting times fit into n trials, four a round.
  const auto last = until_done(call.random(), {bit_or(undefined, nothing), number(n, 0), number(n, 0)},
                               [&](std::span<const Value> s, const Draws& draws) -> std::vector<Value> {
                                 Value done = s[0], count = s[1], trials = s[2];
                                 for (size_t i = 0; i < 4; ++i) {
                                   const Value running = bit_and(logical_not(done), logical_not(large));
                                   const Value wait = ceil(divide(log(draws.uniform(i, dtype)), log_miss));
                                   trials = select(running, add(trials, wait), trials);
                                   const Value fits = at_most(trials, n);
                                   count = select(bit_and(running, fits), add(count, number(count, 1)), count);
                                   done = bit_or(done, bit_and(running, logical_not(fits)));
                                 }
                                 const Candidate candidate = binomial_candidate(safe_n, safe_p, draws);
                                 const Value take = bit_and(bit_and(candidate.good, large), logical_not(s[0]));
                                 return {bit_or(done, take), select(take, candidate.value, count), trials};
                               });
  const Value count = select(flip, subtract(n, last[1]), last[1]);
  return finish(call, select(undefined, add(n, given), count));
}

const Row kRows[] = {
    {"_standard_gamma", lower_standard_gamma, 0, 0, 4},
    {"_sample_dirichlet", lower_sample_dirichlet, 0, 0, 4},
    {"poisson", lower_poisson, 0, 0, 4},
    {"binomial", lower_binomial, 0, 0, 4},
};

}  // namespace

std::span<const Row> random_rejection_rows() { return kRows; }

}  // namespace tpu::lowering
