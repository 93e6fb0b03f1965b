// Random sampling with closed forms: uniform, normal, Bernoulli and what follows from them, permutations,
// multinomial, dropout. Rejection samplers (gamma, Poisson, binomial) are in random_rejection.cpp. In-place rows
// return the new contents of self; its old values are not read.

#include <cmath>
#include <limits>
#include <numbers>

#include "lowering/indexing.h"
#include "lowering/philox.h"

namespace tpu::lowering {

std::span<const Row> random_rejection_rows();  // random_rejection.cpp

using stablehlo::Compare;
using stablehlo::Reducer;

namespace {

using Results = std::vector<Value>;

constexpr uint32_t bit(int i) { return 1U << i; }

/// Raises `message` (a RuntimeError) for a number that is not at least 0, or more where `positive`; as NaN is not. At
/// once for a known number, else on the device.
void check_range(const OpCall& call, size_t i, bool positive, const char* message) {
  if (const auto known = call.known(i)) {
    const double number = known->as_double();
    if (!(positive ? number > 0 : number >= 0)) throw Error(Code::kInvalidArgument, message);
    return;
  }
  const Value x = call.operand(i, DType::kF32);
  const Value fits = compare(x, full_like(x, 0), positive ? Compare::kGt : Compare::kGe);
  call.check(any_true(logical_not(fits)), Code::kInvalidArgument, message);
}

void check_not_negative(const OpCall& call, size_t i, const char* message) { check_range(call, i, false, message); }
void check_positive(const OpCall& call, size_t i, const char* message) { check_range(call, i, true, message); }

/// Argument `i` (number or tensor) at the sizes of the result.
Value spread_operand(const OpCall& call, size_t i, const TensorType& type) {
  return broadcast_to(call.operand(i, type.dtype), type.dims);
}

TensorType computing(const TensorType& type) { return {compute_type(type.dtype), type.dims}; }

bool is_known(const OpCall& call, size_t i, double value) {
  const auto known = call.known(i);
  return known && known->as_double() == value;
}

// ---- uniform

Results lower_uniform(const OpCall& call) {
  const TensorType& type = call.result_type();
  const Value u = random_uniform(call.random(), type);
  if (is_known(call, 1, 0) && is_known(call, 2, 1)) return {u};
  const TensorType wide = computing(type);
  const Value from = spread_operand(call, 1, wide);
  const Value to = spread_operand(call, 2, wide);
  call.check(any_true(compare(call.operand(1, wide.dtype), call.operand(2, wide.dtype), Compare::kGt)),
             Code::kInvalidArgument, "uniform_ expects to return a [from, to) range, but found from > to");
  const Value x = convert(add(from, multiply(convert(u, wide.dtype), subtract(to, from))), type.dtype);
  // Rounding may reach `to`, which does not belong to the range.
  const Value low = convert(from, type.dtype);
  return {select(compare(x, convert(to, type.dtype), Compare::kGe), low, x)};
}

// ---- normal

constexpr char kNegativeStd[] = "normal expects std >= 0.0";
constexpr char kNegativeStds[] = "normal expects all elements of std >= 0.0";

/// mean + std * z; mean and std are arguments of the call, numbers or tensors.
Value scaled_normal(const OpCall& call, size_t mean, size_t std, const TensorType& type) {
  const TensorType wide = computing(type);
  Value z = random_normal(call.random(), wide);
  if (!is_known(call, std, 1)) z = multiply(z, spread_operand(call, std, wide));
  if (!is_known(call, mean, 0)) z = add(z, spread_operand(call, mean, wide));
  return convert(z, type.dtype);
}

/// Real and imaginary part share the variance; mean is added to both, as PyTorch does.
Value complex_normal(const OpCall& call, const TensorType& type) {
  TensorType parts{real_type(type.dtype), type.dims};
  parts.dims.push_back(2);
  const Value z = random_normal(call.random(), parts);
  const Value std = multiply(spread_operand(call, 2, parts), full_like(z, std::numbers::sqrt2 / 2));
  const Value x = add(spread_operand(call, 1, parts), multiply(std, z));
  const auto part = [&](int64_t k) {
    Dims start(parts.dims.size(), 0);
    Dims limit = parts.dims;
    start.back() = k;
    limit.back() = k + 1;
    return reshape(slice(x, start, limit, Dims(parts.dims.size(), 1)), type.dims);
  };
  return stablehlo::complex(part(0), part(1));
}

Results lower_normal_in_place(const OpCall& call) {
  check_not_negative(call, 2, kNegativeStd);
  const TensorType& type = call.result_type();
  if (is_complex(type.dtype)) return {complex_normal(call, type)};
  return {scaled_normal(call, 1, 2, type)};
}

Results lower_normal(const OpCall& call) {
  if (call.is_scalar(1) || call.known(1)) {
    check_not_negative(call, 1, kNegativeStd);
  } else {
    const Value std = call.tensor(1);
    const Value fits = compare(std, full_like(std, 0), Compare::kGe);  // not so for NaN
    call.check(any_true(logical_not(fits)), Code::kInvalidArgument, kNegativeStds);
  }
  return {scaled_normal(call, 0, 1, call.result_type())};
}

// ---- Bernoulli

/// True with probability `p` (floating, broadcast to `sizes`), with a resolution of 2^-32.
Value bernoulli_mask(const RandomState& state, Value p, const Dims& sizes) {
  const Value bits = random_bits(state, sizes);
  const Value chance = broadcast_to(p, sizes);
  const Value one = full_like(chance, 1);
  // Just below 1, so that the scaled number fits 32 bits; p = 1 is always true.
  const Value below_one = minimum(chance, full_like(chance, 1 - std::ldexp(1.0, -24)));
  const Value threshold = convert(multiply(below_one, full_like(chance, std::ldexp(1.0, 32))), DType::kU32);
  return bit_or(compare(bits, threshold, Compare::kLt), compare(chance, one, Compare::kGe));
}

void check_probability(const OpCall& call, Value p, const char* message) {
  // Written so that NaN fails too.
  const Value good = bit_and(compare(p, full_like(p, 0), Compare::kGe), compare(p, full_like(p, 1), Compare::kLe));
  call.check(any_true(logical_not(good)), Code::kInvalidArgument, message);
}

Results bernoulli_with(const OpCall& call, size_t p_argument) {
  const TensorType& type = call.result_type();
  constexpr char kMessage[] = "bernoulli expects p to be in [0, 1]";
  const auto known = call.known(p_argument);
  if (known && !(known->as_double() >= 0 && known->as_double() <= 1)) throw Error(Code::kInvalidArgument, kMessage);
  const Value p = call.operand(p_argument, DType::kF32);
  if (!known) check_probability(call, p, kMessage);
  return {convert_like_torch(bernoulli_mask(call.random(), p, type.dims), type.dtype)};
}

Results lower_bernoulli(const OpCall& call) { return bernoulli_with(call, 0); }
Results lower_bernoulli_p(const OpCall& call) { return bernoulli_with(call, 1); }

// ---- integers

/// Integers base + [0, range) of `type`; range 0 stands for 2^64.
Value random_integers(const OpCall& call, int64_t base, uint64_t range, const TensorType& type) {
  const RandomState& state = call.random();
  Value number;
  if (range != 0 && range <= std::numeric_limits<uint32_t>::max()) {
    // High half of bits * range: as uniform as the remainder, and a product is cheaper than a division.
    const Value wide = convert(random_bits(state, type.dims), DType::kU64);
    const Value product = multiply(wide, call.builder().constant(static_cast<int64_t>(range), wide.type()));
    const Value shift = call.builder().constant(int64_t{32}, wide.type());
    number = convert(shift_right_logical(product, shift), DType::kS64);
  } else {
    Value bits = random_bits64(state, type.dims);
    if (range != 0) {
      const Value modulus = bitcast_convert(
          call.builder().constant(static_cast<int64_t>(range), TensorType{DType::kS64, type.dims}), DType::kU64);
      bits = remainder(bits, modulus);
    }
    number = bitcast_convert(bits, DType::kS64);
  }
  if (base != 0) number = add(number, call.builder().constant(base, number.type()));
  return convert_like_torch(number, type.dtype);
}

/// Largest value random_ draws for `dtype` when no bound is given.
int64_t default_maximum(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kF64:
      return int64_t{1} << 53;
    case DType::kF32:
      return int64_t{1} << 24;
    case DType::kF16:
      return int64_t{1} << 11;
    case DType::kBF16:
      return int64_t{1} << 8;
    case DType::kU64:
      return std::numeric_limits<int64_t>::max();
    default: {
      const int bits = static_cast<int>(byte_size(dtype)) * 8 - (is_unsigned_integer(dtype) ? 0 : 1);
      return bits == 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << bits) - 1;
    }
  }
}

Results random_between(const OpCall& call, int64_t from, int64_t last) {
  if (from > last) {
    throw Error(Code::kInvalidArgument, "random_ expects 'from' to be less than 'to', but got from=" +
                                            std::to_string(from) + " >= to=" + std::to_string(last + 1));
  }
  const uint64_t range = static_cast<uint64_t>(last) - static_cast<uint64_t>(from) + 1;
  return {random_integers(call, from, range, call.result_type())};
}

Results lower_random(const OpCall& call) { return random_between(call, 0, default_maximum(call.result_type().dtype)); }

Results lower_random_to(const OpCall& call) { return random_between(call, 0, call.integer(1) - 1); }

Results lower_random_from(const OpCall& call) {
  const int64_t last = call.is_none(2) ? default_maximum(call.result_type().dtype) : call.integer(2) - 1;
  return random_between(call, call.integer(1), last);
}

Results lower_randperm(const OpCall& call) {
  const TensorType& type = call.result_type();
  if (type.numel() == 0)
    return {convert_like_torch(call.builder().constant(int64_t{0}, {DType::kS32, {0}}), type.dtype)};
  // 64-bit keys: equal ones, whose order would not be random, are out of the question.
  const Value keys = random_bits64(call.random(), type.dims);
  const Value index = stablehlo::iota(call.builder(), {index_dtype(type.dims[0]), type.dims}, 0);
  const auto sorted = stablehlo::sort(std::vector<Value>{keys, index}, 0, true, [](std::span<const Value> a) {
    return std::vector<Value>{compare(a[0], a[1], Compare::kLt)};
  });
  return {convert(sorted[1], type.dtype)};
}

// ---- other continuous and discrete distributions

Value open_uniform(const OpCall& call) { return random_open_uniform(call.random(), computing(call.result_type())); }

Results lower_exponential(const OpCall& call) {
  check_positive(call, 1, "exponential_ expects lambda > 0.0");
  const TensorType wide = computing(call.result_type());
  const Value e = negate(log(open_uniform(call)));
  return {convert(is_known(call, 1, 1) ? e : divide(e, spread_operand(call, 1, wide)), call.result_type().dtype)};
}

Results lower_log_normal(const OpCall& call) {
  check_positive(call, 2, "log_normal_ expects std > 0.0");
  const TensorType& type = call.result_type();
  return {convert(exponential(scaled_normal(call, 1, 2, computing(type))), type.dtype)};
}

Results lower_cauchy(const OpCall& call) {
  check_positive(call, 2, "cauchy_ expects sigma > 0.0");
  const TensorType& type = call.result_type();
  const TensorType wide = computing(type);
  const Value u = open_uniform(call);
  const Value angle = multiply(subtract(u, full_like(u, 0.5)), full_like(u, std::numbers::pi));
  const Value ratio = divide(sine(angle), cosine(angle));
  return {convert(add(spread_operand(call, 1, wide), multiply(spread_operand(call, 2, wide), ratio)), type.dtype)};
}

Results lower_geometric(const OpCall& call) {
  const TensorType& type = call.result_type();
  const DType dtype = is_floating(type.dtype) ? compute_type(type.dtype) : DType::kF64;
  constexpr char kMessage[] = "geometric_ expects p to be in (0, 1)";
  const Value p = call.operand(1, DType::kF64);
  if (const auto known = call.known(1)) {
    if (!(known->as_double() > 0 && known->as_double() < 1)) throw Error(Code::kInvalidArgument, kMessage);
  } else {
    const Value good = bit_and(compare(p, full_like(p, 0), Compare::kGt), compare(p, full_like(p, 1), Compare::kLt));
    call.check(logical_not(good), Code::kInvalidArgument, kMessage);
  }
  const Value u = random_open_uniform(call.random(), {dtype, type.dims});
  const Value scale = broadcast_to(convert(log_plus_one(negate(p)), dtype), type.dims);
  const Value trials = ceil(divide(log(u), scale));
  return {convert_like_torch(maximum(trials, full_like(trials, 1)), type.dtype)};
}

// ---- multinomial

void check_weights(const OpCall& call, Value weights) {
  const Value good = bit_and(compare(weights, full_like(weights, 0), Compare::kGe), is_finite(weights));
  call.check(any_true(logical_not(good)), Code::kInvalidArgument,
             "probability tensor contains either `inf`, `nan` or element < 0");
  const Value total = reduce(weights, Reducer::kAdd, {1});
  call.check(any_true(compare(total, full_like(total, 0), Compare::kLe)), Code::kInvalidArgument,
             "invalid multinomial distribution (sum of probabilities <= 0)");
}

/// Cumulative weights [rows, n] in which a category of weight 0 repeats its predecessor's value exactly: sums by
/// blocks may round differently on either side of such a category, which then could be drawn.
Value cumulative_weights(Value weights) {
  const int64_t n = weights.dim(1);
  const stablehlo::Window window{{1, n}, {1, 1}, {1, 1}, {1, 1}, {0, n - 1}, {0, 0}};
  const auto scan = [&](Value x, Reducer reducer) {
    const Value init = stablehlo::neutral(x.builder(), reducer, x.dtype());
    return stablehlo::reduce_window(std::vector<Value>{x}, std::vector<Value>{init}, window,
                                    [reducer](std::span<const Value> a) -> std::vector<Value> {
                                      if (reducer == Reducer::kAdd) return {add(a[0], a[1])};
                                      return {maximum(a[0], a[1])};
                                    })[0];
  };
  const Value sums = scan(weights, Reducer::kAdd);
  const Value has_weight = compare(weights, full_like(weights, 0), Compare::kGt);
  return scan(select(has_weight, sums, full_like(sums, 0)), Reducer::kMaximum);
}

/// For each draw [rows, s], the first category whose cumulative weight [rows, n] exceeds it; int32.
Value first_above(Value cumulative, Value draws) {
  const int64_t n = cumulative.dim(1);
  Value position = draws.builder().constant(int64_t{0}, {DType::kS32, draws.dims()});
  int64_t step = 1;
  while (step * 2 <= n) step *= 2;
  for (; step > 0; step /= 2) {
    const Value next = add(position, full_like(position, static_cast<double>(step)));
    const Value inside = compare(next, full_like(next, static_cast<double>(n)), Compare::kLt);
    const Value last = take_along_axis(cumulative, subtract(next, full_like(next, 1)), 1);
    position = select(bit_and(inside, compare(last, draws, Compare::kLe)), next, position);
  }
  return position;
}

Value draw_with_replacement(const OpCall& call, Value weights, int64_t samples) {
  const Value cumulative = cumulative_weights(weights);
  const Dims sizes{weights.dim(0), samples};
  const Value total = slice(cumulative, {0, weights.dim(1) - 1}, cumulative.dims(), {1, 1});
  const Value u = random_open_uniform(call.random(), {weights.dtype(), sizes});
  // The factor keeps the product below the total after rounding, so that the last category is no catch-all.
  const Value draws = multiply(multiply(u, full_like(u, 1 - std::ldexp(1.0, -22))), broadcast_to(total, sizes));
  return first_above(cumulative, draws);
}

/// The `samples` categories with the smallest exponential arrival time, the rate being the weight.
Value draw_without_replacement(const OpCall& call, Value weights, int64_t samples) {
  const int64_t count = weights.type().numel();
  const Value bits = interleave(philox_wide(call.random(), (count + 3) / 4), weights.dims());
  const Value arrival = divide(negate(log(convert(open_uniform_from_bits(bits), weights.dtype()))), weights);
  const Value index = stablehlo::iota(call.builder(), {DType::kS32, weights.dims()}, 1);
  const auto sorted = stablehlo::sort(std::vector<Value>{arrival, index}, 1, true, [](std::span<const Value> a) {
    return std::vector<Value>{compare(a[0], a[1], Compare::kLt)};
  });
  return slice(sorted[1], {0, 0}, {weights.dim(0), samples}, {1, 1});
}

Results lower_multinomial(const OpCall& call) {
  const TensorType& type = call.result_type();
  const int64_t samples = call.integer(1);
  if (samples <= 0) throw Error(Code::kInvalidArgument, "cannot sample n_sample <= 0 samples");
  const Value given = call.tensor(0);
  Value weights = convert(given, compute_type(given.dtype()));
  if (weights.rank() == 1) weights = unsqueeze(weights, 0);
  if (type.numel() == 0) return {call.builder().constant(int64_t{0}, type)};
  check_weights(call, weights);
  const bool independent = call.boolean_or(2, false) || samples == 1;
  const Value drawn =
      independent ? draw_with_replacement(call, weights, samples) : draw_without_replacement(call, weights, samples);
  return {reshape(convert(drawn, DType::kS64), type.dims)};
}

// ---- dropout

Results lower_native_dropout(const OpCall& call) {
  const Value x = call.tensor(0);
  const double p = call.real(1);
  if (!call.boolean_or(2, true)) {
    return {x, call.builder().constant(int64_t{1}, {DType::kBool, x.dims()})};
  }
  const Value keep = bernoulli_mask(call.random(), scalar(call.builder(), 1 - p, DType::kF32), x.dims());
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  const Value wide = convert(x, compute_type(x.dtype()));
  // A product rather than a select: PyTorch keeps NaN and infinity times 0 visible.
  const Value kept = multiply(wide, convert(keep, wide.dtype()));
  return {convert(multiply(kept, full_like(kept, scale)), x.dtype()), keep};
}

Results lower_native_dropout_backward(const OpCall& call) {
  const Value grad = call.tensor(0);
  const DType dtype = compute_type(call.result_type().dtype);  // float32 for integers
  const Value kept = multiply(convert_like_torch(grad, dtype), convert_like_torch(call.tensor(1), dtype));
  const Value scaled = multiply(kept, broadcast_to(call.operand(2, dtype), kept.dims()));
  return {convert_like_torch(scaled, call.result_type().dtype)};
}

/// (self, noise) -> (new noise, output): in training the slope of each negative element is drawn.
Results lower_rrelu_with_noise(const OpCall& call) {
  const Value x = call.tensor(0);
  const Value noise = call.tensor(1);
  const Value negative = compare(x, full_like(x, 0), Compare::kLe);
  const DType dtype = compute_type(x.dtype());
  const Value wide = convert(x, dtype);
  const Value lower = broadcast_to(call.operand(2, dtype), x.dims());
  const Value upper = broadcast_to(call.operand(3, dtype), x.dims());
  if (!call.boolean_or(4, false)) {
    const Value slope = multiply(add(lower, upper), full_like(wide, 0.5));
    return {noise, convert(select(negative, multiply(wide, slope), wide), x.dtype())};
  }
  const Value u = random_uniform(call.random(), {dtype, x.dims()});
  const Value slope = select(negative, add(lower, multiply(u, subtract(upper, lower))), full_like(wide, 1));
  return {convert(slope, noise.dtype()), convert(multiply(wide, slope), x.dtype())};
}

constexpr uint32_t kSelf = bit(0);  // filled in place: old contents are not read

const Row kRows[] = {
    {"uniform_", lower_uniform, 0, bit(1) | bit(2), 2, false, kSelf},
    {"normal_", lower_normal_in_place, 0, bit(1) | bit(2), 4, false, kSelf},
    {"normal_functional", lower_normal_in_place, 0, bit(1) | bit(2), 4, false, kSelf},
    {"normal.Tensor_float", lower_normal, 0, bit(1), 2},
    {"normal.float_Tensor", lower_normal, 0, bit(0), 2},
    {"normal.Tensor_Tensor", lower_normal, 0, 0, 2},
    {"bernoulli", lower_bernoulli, 0, 0, 1},
    {"bernoulli.p", lower_bernoulli_p, 0, bit(1), 1, false, kSelf},
    {"bernoulli_.float", lower_bernoulli_p, 0, bit(1), 1, false, kSelf},
    {"bernoulli_.Tensor", lower_bernoulli_p, 0, 0, 1, false, kSelf},
    {"random_", lower_random, 0, 0, 2, false, kSelf},
    {"random_.to", lower_random_to, 0, 0, 2, false, kSelf},
    {"random_.from", lower_random_from, 0, 0, 2, false, kSelf},
    {"randperm", lower_randperm, 0, 0, 2},
    {"randperm.generator", lower_randperm, 0, 0, 2},
    {"exponential_", lower_exponential, 0, bit(1), 2, false, kSelf},
    {"log_normal_", lower_log_normal, 0, bit(1) | bit(2), 2, false, kSelf},
    {"cauchy_", lower_cauchy, 0, bit(1) | bit(2), 2, false, kSelf},
    {"geometric_", lower_geometric, 0, bit(1), 2, false, kSelf},
    {"multinomial", lower_multinomial, 0, 0, 2},
    {"native_dropout", lower_native_dropout, 0, 0, 1},
    {"native_dropout_backward", lower_native_dropout_backward},
    {"rrelu_with_noise", lower_rrelu_with_noise, bit(2) | bit(3), 0, 2},
};

}  // namespace

std::span<const Row> random_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kRows), std::end(kRows));
    const auto rejection = random_rejection_rows();
    all.insert(all.end(), rejection.begin(), rejection.end());
    return all;
  }();
  return rows;
}

}  // namespace tpu::lowering
