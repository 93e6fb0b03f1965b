#include "lowering/philox.h"

#include <cmath>
#include <numbers>

#include "lowering/helpers.h"

namespace tpu::lowering {

using stablehlo::Compare;

namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53U;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57U;
constexpr uint32_t kWeyl0 = 0x9E3779B9U;  // golden ratio
constexpr uint32_t kWeyl1 = 0xBB67AE85U;  // sqrt(3) - 1
constexpr int kRounds = 10;

Value word_like(Value like, uint64_t value) {
  return like.builder().constant(static_cast<int64_t>(value), like.type());
}

Value low_word(Value x) { return convert(x, DType::kU32); }
Value high_word(Value x) { return convert(shift_right_logical(x, word_like(x, 32)), DType::kU32); }

/// 64-bit product of 32-bit words. A widening multiply is one vector instruction on CPUs; products of 16-bit
/// pieces took two to five times as long.
Value wide_product(Value x, uint32_t multiplier) {
  const Value wide = convert(x, DType::kU64);
  return multiply(wide, word_like(wide, multiplier));
}

/// Up to this many blocks the rounds run as a loop: unrolled they take a few hundred operations, whose
/// compilation costs more than they save at these sizes.
constexpr int64_t kLoopLimit = int64_t{1} << 16;

Value spread(Value scalar_word, const Dims& sizes) { return broadcast_in_dim(scalar_word, sizes, {}); }

PhiloxWords mix_round(const PhiloxWords& c, Value key0, Value key1) {
  const Dims& sizes = c[0].dims();
  const Value p0 = wide_product(c[0], kMultiplier0);
  const Value p1 = wide_product(c[2], kMultiplier1);
  return {bit_xor(bit_xor(high_word(p1), c[1]), spread(key0, sizes)), low_word(p1),
          bit_xor(bit_xor(high_word(p0), c[3]), spread(key1, sizes)), low_word(p0)};
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Pairs of words as 64-bit numbers: words 0, 1 and words 2, 3.
std::array<Value, 2> pair_words(const PhiloxWords& words) {
  const auto join = [](Value low, Value high) {
    const Value shifted = convert(high, DType::kU64);
    return bit_or(convert(low, DType::kU64), shift_left(shifted, word_like(shifted, 32)));
  };
  return {join(words[0], words[1]), join(words[2], words[3])};
}

/// bits >> shift, as floating point, times 2^-(width - shift).
Value fraction(Value bits, int shift, DType dtype) {
  const int width = static_cast<int>(byte_size(bits.dtype())) * 8;
  const Value kept = convert(shift_right_logical(bits, word_like(bits, static_cast<uint64_t>(shift))), dtype);
  return multiply(kept, full_like(kept, std::ldexp(1.0, shift - width)));
}

int significand_bits(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 53;
    case DType::kF32:
      return 24;
    case DType::kF16:
      return 11;
    case DType::kBF16:
      return 8;
    default:
      throw Error(Code::kNotImplemented, "random numbers of type " + std::string(torch_name(dtype)));
  }
}

/// x - x^3/3! + ... (first_power 1) or 1 - x^2/2! + ... (first_power 0), for |x| <= pi/4. The last term left out
/// is below the rounding error of float32 (5 terms) and float64 (9 terms).
Value taylor(Value x, int first_power, int terms) {
  const Value squared = multiply(x, x);
  double factorial = std::tgamma(first_power + 2 * (terms - 1) + 1);
  Value sum = full_like(x, ((terms - 1) % 2 ? -1 : 1) / factorial);
  for (int k = terms - 2; k >= 0; --k) {
    factorial = std::tgamma(first_power + 2 * k + 1);
    sum = add(multiply(sum, squared), full_like(x, (k % 2 ? -1 : 1) / factorial));
  }
  return first_power == 1 ? multiply(sum, x) : sum;
}

/// Cosine and sine of a uniformly drawn angle: the top two bits choose the quadrant, the next 24 (53) the angle
/// within. Knowing the range saves the argument reduction that makes general sines ten times a logarithm, and
/// leaves only sums and products, which round alike everywhere.
std::array<Value, 2> cosine_and_sine(Value bits) {
  const bool wide = bits.dtype() == DType::kU64;
  const DType dtype = wide ? DType::kF64 : DType::kF32;
  const Value place = fraction(shift_left(bits, word_like(bits, 2)), wide ? 11 : 8, dtype);
  const Value x = multiply(subtract(place, full_like(place, 0.5)), full_like(place, std::numbers::pi / 2));
  const Value c = taylor(x, 0, wide ? 9 : 5);
  const Value s = taylor(x, 1, wide ? 9 : 5);
  const Value quadrant = shift_right_logical(bits, word_like(bits, wide ? 62 : 30));
  const auto is = [&](uint64_t q) { return compare(quadrant, word_like(quadrant, q), Compare::kEq); };
  const Value odd = bit_or(is(1), is(3));
  const Value cos = select(odd, s, c);
  const Value sin = select(odd, c, s);
  return {select(bit_or(is(1), is(2)), negate(cos), cos), select(bit_or(is(2), is(3)), negate(sin), sin)};
}

/// Box-Muller: two normal numbers from a radius draw and an angle draw, both ui32 or both ui64.
std::array<Value, 2> box_muller(Value radius_bits, Value angle_bits) {
  const bool is_double = radius_bits.dtype() == DType::kU64;
  const DType dtype = is_double ? DType::kF64 : DType::kF32;
  Value u;
  if (is_double) {
    u = open_uniform_from_bits(radius_bits);
  } else {
    // All 32 bits, for the tails; rounds to 1 at most, whose logarithm is 0.
    const Value bits = convert(radius_bits, dtype);
    u = multiply(add(bits, full_like(bits, 0.5)), full_like(bits, std::ldexp(1.0, -32)));
  }
  const Value radius = sqrt(multiply(log(u), full_like(u, -2)));
  const auto [cos, sin] = cosine_and_sine(angle_bits);
  return {multiply(radius, cos), multiply(radius, sin)};
}

}  // namespace

PhiloxWords philox(const PhiloxWords& counter, Value seed) {
  Value key0 = low_word(seed);
  Value key1 = high_word(seed);
  PhiloxWords c = counter;
  if (counter[0].type().numel() > kLoopLimit) {
    for (int round = 0; round < kRounds; ++round) {
      c = mix_round(c, key0, key1);
      key0 = add(key0, word_like(key0, kWeyl0));
      key1 = add(key1, word_like(key1, kWeyl1));
    }
    return c;
  }
  const Value first = seed.builder().constant(int64_t{0}, {DType::kS32, {}});
  const auto last = stablehlo::while_loop(
      std::vector<Value>{first, key0, key1, c[0], c[1], c[2], c[3]},
      [](std::span<const Value> a) -> std::vector<Value> {
        return {compare(a[0], full_like(a[0], kRounds), Compare::kLt)};
      },
      [](std::span<const Value> a) -> std::vector<Value> {
        const PhiloxWords next = mix_round({a[3], a[4], a[5], a[6]}, a[1], a[2]);
        return {add(a[0], full_like(a[0], 1)),
                add(a[1], word_like(a[1], kWeyl0)),
                add(a[2], word_like(a[2], kWeyl1)),
                next[0],
                next[1],
                next[2],
                next[3]};
      });
  return {last[3], last[4], last[5], last[6]};
}

PhiloxWords philox_blocks(const RandomState& state, int64_t count, Value round) {
  Builder& builder = state.seed.builder();
  const TensorType type{DType::kU32, {count}};
  const Value low = spread(low_word(state.offset), type.dims);
  const Value high = spread(high_word(state.offset), type.dims);
  const Value c0 = add(low, stablehlo::iota(builder, type, 0));
  const Value carry = convert(compare(c0, low, Compare::kLt), DType::kU32);
  const Value zero = builder.constant(int64_t{0}, type);
  return philox({c0, add(high, carry), zero, round.defined() ? spread(round, type.dims) : zero}, state.seed);
}

PhiloxWords philox_wide(const RandomState& state, int64_t count) {
  Builder& builder = state.seed.builder();
  const TensorType type{DType::kU32, {count}};
  const Value index = stablehlo::iota(builder, type, 0);
  return philox({spread(low_word(state.offset), type.dims), spread(high_word(state.offset), type.dims),
                 add(index, word_like(index, 1)), word_like(index, 0)},
                state.seed);
}

Value interleave(std::span<const Value> lanes, const Dims& sizes) {
  const auto count = static_cast<int64_t>(lanes.size());
  // Without the barrier the compiler recomputes all ten rounds for each element of the interleaved result;
  // selecting among the lanes is a third of the time of concatenating them.
  const std::vector<Value> kept = stablehlo::optimization_barrier(lanes);
  const Dims pairs{kept[0].dim(0), count};
  const Value lane = stablehlo::iota(kept[0].builder(), {DType::kS32, pairs}, 1);
  Value merged = broadcast_in_dim(kept[0], pairs, {0});
  for (int64_t k = 1; k < count; ++k) {
    const Value here = compare(lane, full_like(lane, static_cast<double>(k)), Compare::kEq);
    merged = select(here, broadcast_in_dim(kept[static_cast<size_t>(k)], pairs, {0}), merged);
  }
  const int64_t total = product(sizes);
  return reshape(slice(reshape(merged, {product(pairs)}), {0}, {total}, {1}), sizes);
}

Value random_bits(const RandomState& state, const Dims& sizes) {
  const PhiloxWords words = philox_blocks(state, divide_up(product(sizes), 4));
  return interleave(words, sizes);
}

Value random_bits64(const RandomState& state, const Dims& sizes) {
  const auto words = pair_words(philox_blocks(state, divide_up(product(sizes), 2)));
  return interleave(words, sizes);
}

Value random_uniform(const RandomState& state, const TensorType& type) {
  const int kept = significand_bits(type.dtype);
  const bool wide = type.dtype == DType::kF64;
  const Value bits = wide ? random_bits64(state, type.dims) : random_bits(state, type.dims);
  const int width = wide ? 64 : 32;
  return convert(fraction(bits, width - kept, compute_type(type.dtype)), type.dtype);
}

Value open_uniform_from_bits(Value bits) {
  // One bit less than the significand holds, so that the half step is exact and neither 0 nor 1 occurs.
  const bool wide = bits.dtype() == DType::kU64;
  const int kept = wide ? 52 : 23;
  const Value shifted = shift_right_logical(bits, word_like(bits, wide ? 12 : 9));
  const Value number = convert(shifted, wide ? DType::kF64 : DType::kF32);
  return multiply(add(number, full_like(number, 0.5)), full_like(number, std::ldexp(1.0, -kept)));
}

Value normal_from_bits(Value radius_bits, Value angle_bits) { return box_muller(radius_bits, angle_bits)[0]; }

Value random_open_uniform(const RandomState& state, const TensorType& type) {
  const bool wide = type.dtype == DType::kF64;
  return open_uniform_from_bits(wide ? random_bits64(state, type.dims) : random_bits(state, type.dims));
}

Value random_normal(const RandomState& state, const TensorType& type) {
  const int64_t numel = product(type.dims);
  if (type.dtype == DType::kF64) {
    const auto draws = pair_words(philox_blocks(state, divide_up(numel, 2)));
    return interleave(box_muller(draws[0], draws[1]), type.dims);
  }
  significand_bits(type.dtype);  // refuses types that are not floating
  const PhiloxWords words = philox_blocks(state, divide_up(numel, 4));
  const auto first = box_muller(words[0], words[1]);
  const auto second = box_muller(words[2], words[3]);
  const std::array<Value, 4> lanes{first[0], first[1], second[0], second[1]};
  return convert(interleave(lanes, type.dims), type.dtype);
}

}  // namespace tpu::lowering
