#pragma once
// Random numbers from a counter: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011) in integer operations, so that a seed gives the same bits on every plugin and in every mode.
//
// The contract. A call has a state (seed, offset), both 64 bits. The key is (low, high) word of the seed. Result
// elements are numbered in row-major order, whatever the memory layout:
//   32-bit draws   element e is word e % 4 of block(offset + e / 4)
//   64-bit draws   element e is words 2 (e % 2) (low half) and 2 (e % 2) + 1 (high half) of block(offset + e / 2)
// where block(c) is the output for the counter words (low c, high c, 0, 0). A call moves the offset on by
// ceil(numel / 4) times its row's random_factor. Draws that are not one to a result element use the upper
// counter words, which no other call reaches: see philox_wide and the `round` of philox_blocks.
//
// From bits to numbers (bits are of the draw's width):
//   uniform   f32 (bits >> 8) / 2^24; f64 (bits >> 11) / 2^53; f16 (bits >> 21) / 2^11; bf16 (bits >> 24) / 2^8
//   normal    Box-Muller on neighbouring draws (a, b): sqrt(-2 ln((a + 1/2) / 2^32)) times cosine and sine of
//             (q + f / 2^24 - 1/2) pi / 2 for elements 2i and 2i + 1, where q is the top two bits of b and f the
//             next 24; f64 likewise from 64-bit draws (radius from ((a >> 12) + 1/2) / 2^52, f of 53 bits), where
//             the pair of elements shares one block. Narrow floats round the float32 number.
// Bits and uniform numbers are equal everywhere; logarithms and roots may round differently by plugin.

#include <array>

#include "lowering/op_call.h"

namespace tpu::lowering {

/// The four words of each block; ui32, all of one shape.
using PhiloxWords = std::array<Value, 4>;

/// Philox4x32-10 of counters (words of one shape) under the key `seed` (0-d ui64).
PhiloxWords philox(const PhiloxWords& counter, Value seed);

/// Blocks offset, offset + 1, ... as [count] words; `round` (0-d ui32, optional) is the last counter word, for
/// loops that draw again for the same elements.
PhiloxWords philox_blocks(const RandomState& state, int64_t count, Value round = {});

/// [count] words that depend on the offset alone, through counter words (low offset, high offset, i + 1, 0): for
/// draws more numerous than the call's result.
PhiloxWords philox_wide(const RandomState& state, int64_t count);

/// Element i * lanes + k of the result is lanes[k][i], cut and shaped to `sizes`. Keeps the lanes from being
/// computed anew for every element.
Value interleave(std::span<const Value> lanes, const Dims& sizes);

/// 32-bit draws for elements of `sizes`; ui32.
Value random_bits(const RandomState& state, const Dims& sizes);
/// 64-bit draws for elements of `sizes`; ui64.
Value random_bits64(const RandomState& state, const Dims& sizes);

/// Uniform numbers in [0, 1) of any real floating type, with as many random bits as its significand.
Value random_uniform(const RandomState& state, const TensorType& type);
/// Uniform numbers strictly between 0 and 1, in f32 or f64.
Value random_open_uniform(const RandomState& state, const TensorType& type);
/// Standard normal numbers of any real floating type.
Value random_normal(const RandomState& state, const TensorType& type);

/// Standard normal numbers (f32 from ui32 words, f64 from ui64): radius and angle of one Box-Muller pair.
Value normal_from_bits(Value radius_bits, Value angle_bits);
/// Numbers strictly between 0 and 1 from ui32 bits (f32) or ui64 bits (f64).
Value open_uniform_from_bits(Value bits);

}  // namespace tpu::lowering
