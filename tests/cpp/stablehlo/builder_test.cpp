// Constants, parameters and regions of the builder.

#include "stablehlo/builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "stablehlo/literal.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

template <typename T>
std::string literal(T value, DType dtype) {
  std::string text;
  append_literal(text, value, dtype);
  return text;
}

TEST(Literal, ShortDecimalsStandAsTheyAre) {
  EXPECT_EQ(literal(0.5, DType::kF32), "0.5");
  EXPECT_EQ(literal(-0.0, DType::kF32), "-0.0");
  EXPECT_EQ(literal(3.0, DType::kF64), "3.0");
  EXPECT_EQ(literal(0.1, DType::kF64), "0.1");
  EXPECT_EQ(literal(1e30, DType::kF64), "1.0e+30");
  EXPECT_EQ(literal(int64_t{7}, DType::kBF16), "7.0");
}

TEST(Literal, OtherFloatsAreBitPatterns) {
  EXPECT_EQ(literal(0.1, DType::kF32), "0x3DCCCCCD");
  EXPECT_EQ(literal(0.1, DType::kF16), "0x2E66");
  EXPECT_EQ(literal(0.1, DType::kBF16), "0x3DCD");
  EXPECT_EQ(literal(M_PI, DType::kF64), "0x400921FB54442D18");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(literal(infinity, DType::kF32), "0x7F800000");
  EXPECT_EQ(literal(-infinity, DType::kF16), "0xFC00");
  EXPECT_EQ(literal(std::nan(""), DType::kBF16), "0x7FC0");
  EXPECT_EQ(literal(1e39, DType::kF32), "0x7F800000");
}

TEST(Literal, HalvesRoundToEvenThroughFloat32) {
  EXPECT_EQ(literal(2049.0, DType::kF16), "2048.0");  // a tie
  EXPECT_EQ(literal(2051.0, DType::kF16), "2052.0");
  EXPECT_EQ(literal(65519.0, DType::kF16), "65504.0");
  EXPECT_EQ(literal(65520.0, DType::kF16), "0x7C00");
  EXPECT_EQ(literal(std::ldexp(1.0, -24), DType::kF16), "0x0001");  // least subnormal
  EXPECT_EQ(literal(std::ldexp(1.0, -25), DType::kF16), "0.0");
}

TEST(Literal, Float8OverflowFollowsPyTorch) {
  EXPECT_EQ(literal(1e6, DType::kF8E4M3FN), "448.0");
  EXPECT_EQ(literal(1e6, DType::kF8E5M2), "0x7C");
  EXPECT_EQ(literal(1e6, DType::kF8E4M3FNUZ), "0x80");
  EXPECT_EQ(literal(-0.0, DType::kF8E5M2FNUZ), "0.0");
  EXPECT_EQ(literal(std::nan(""), DType::kF8E4M3FN), "0x7F");
}

TEST(Literal, LargeIntegersRoundOnce) {
  // Through double the last bit would be lost and the tie would round to even, downwards.
  const int64_t value = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  EXPECT_EQ(literal(value, DType::kF32), "0x5D800001");
}

TEST(Literal, IntegersMustFit) {
  EXPECT_EQ(literal(int64_t{-128}, DType::kS8), "-128");
  EXPECT_EQ(literal(std::numeric_limits<int64_t>::min(), DType::kS64), "-9223372036854775808");
  EXPECT_EQ(literal(3.0, DType::kU8), "3");
  EXPECT_EQ(literal(int64_t{2}, DType::kBool), "true");
  EXPECT_THROW(literal(int64_t{128}, DType::kS8), Error);
  EXPECT_THROW(literal(int64_t{-1}, DType::kU64), Error);
  EXPECT_THROW(literal(2.5, DType::kS32), Error);
  EXPECT_THROW(literal(std::nan(""), DType::kS32), Error);
}

TEST(Literal, ComplexNumbersAreTwoLiterals) {
  EXPECT_EQ(literal(std::complex<double>(1, 0.1), DType::kC64), "(1.0, 0x3DCCCCCD)");
  EXPECT_EQ(literal(2.0, DType::kC128), "(2.0, 0.0)");
}

TEST(Builder, ParametersAndAliases) {
  Builder b("step");
  const Value x = b.parameter({DType::kF32, {2}}, 1);
  const Value y = b.parameter({DType::kS64, {}});
  b.set_aliased_output(1, 0);
  const Value results[] = {y, x};
  EXPECT_EQ(b.finish(results),
            "module @step {\n"
            "  func.func public @main(%0: tensor<2xf32> {tf.aliasing_output = 1 : i32}, %1: tensor<i64> "
            "{tf.aliasing_output = 0 : i32}) -> (tensor<i64>, tensor<2xf32>) {\n"
            "    return %1, %0 : tensor<i64>, tensor<2xf32>\n"
            "  }\n"
            "}\n");
}

TEST(Builder, ConstantsOfARegionStayInside) {
  Builder b;
  const Value x = b.parameter({DType::kF32, {4}});
  const TensorType scalar{DType::kF32, {}};
  const Value outside = b.constant(1.0, scalar);
  Value inside;
  reduce({&x, 1}, {&outside, 1}, {0}, [&](std::span<const Value> a) {
    inside = b.constant(1.0, scalar);
    EXPECT_EQ(b.constant(1.0, scalar).id(), inside.id());
    return std::vector<Value>{multiply(add(a[0], inside), a[1])};
  });
  EXPECT_NE(inside.id(), outside.id());
  EXPECT_EQ(b.constant(1.0, scalar).id(), outside.id());
}

TEST(Builder, ASplatIsOneLiteralWhateverItsSize) {
  Builder b;
  const Value big = b.constant(0.25, {DType::kF32, {1000, 1000}});
  const std::string text = b.finish({&big, 1});
  EXPECT_NE(text.find("dense<0.25> : tensor<1000x1000xf32>"), std::string::npos);
  EXPECT_LT(text.size(), 300u);
}

TEST(Builder, DenseLiteralsNest) {
  Builder b;
  const std::vector<int64_t> values = {1, 2, 3, 4, 5, 6};
  const Value v = b.constant(values, {DType::kS32, {2, 3}});
  EXPECT_NE(b.finish({&v, 1}).find("dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>"), std::string::npos);
  EXPECT_THROW(b.constant(values, {DType::kS32, {4}}), Error);
}

TEST(Builder, TypesStayWhereTheyAre) {
  Builder b;
  const Value x = b.parameter({DType::kF32, {3, 5}});
  const Dims& dims = x.dims();
  for (int i = 0; i < 1000; ++i) b.constant(int64_t{i}, {DType::kS64, {}});
  EXPECT_EQ(dims, (Dims{3, 5}));
}

// ---- lean programs -----------------------------------------------------------------------------------

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

std::string finish(Builder& builder, std::initializer_list<Value> results) {
  return builder.finish({results.begin(), results.size()});
}

constexpr auto kF32 = DType::kF32;

TEST(Lean, AnOperationIsEmittedOnce) {
  Builder builder;
  const Value x = builder.parameter({kF32, {2, 3}}), y = builder.parameter({kF32, {2, 3}});
  const Value once = add(x, y), again = add(x, y), other = add(y, x);
  EXPECT_EQ(once.id(), again.id());
  EXPECT_NE(once.id(), other.id());
  const std::string text = finish(builder, {once, again, other});
  EXPECT_EQ(count(text, "stablehlo.add"), 2u) << text;
}

TEST(Lean, RegionsKnowTheirOwnOperationsOnly) {
  Builder builder;
  const Value x = builder.parameter({kF32, {}}), flag = builder.parameter({DType::kBool, {}});
  const TensorType types[] = {x.type()};
  const Region twice = [&](std::span<const Value>) { return std::vector<Value>{add(x, x)}; };
  const Value before = add(x, x);
  const Value chosen = if_else(flag, twice, twice, types)[0];
  const Value after = add(x, x);
  EXPECT_EQ(before.id(), after.id());
  const std::string text = finish(builder, {before, chosen, after});
  EXPECT_EQ(count(text, "stablehlo.add"), 3u) << text;
}

TEST(Lean, WhatNoResultNeedsIsLeftOut) {
  Builder builder;
  const Value x = builder.parameter({kF32, {4}});
  const Value unused = exponential(negate(x));
  const Value operands[] = {x, tanh(x)};
  const std::vector<Value> kept = optimization_barrier(operands);
  (void)unused;
  const std::string text = finish(builder, {kept[1]});
  EXPECT_EQ(count(text, "exponential") + count(text, "negate"), 0u) << text;
  EXPECT_EQ(count(text, "stablehlo.tanh"), 1u) << text;  // through one result of two
}

TEST(Lean, WhatARegionReadsIsKept) {
  Builder builder;
  const Value x = builder.parameter({kF32, {}}), flag = builder.parameter({DType::kBool, {}});
  const Value outside = sine(x);
  const TensorType types[] = {x.type()};
  const Value chosen = if_else(
      flag, [&](std::span<const Value>) { return std::vector<Value>{outside}; },
      [&](std::span<const Value>) { return std::vector<Value>{x}; }, types)[0];
  EXPECT_EQ(count(finish(builder, {chosen}), "stablehlo.sine"), 1u);
}

TEST(Lean, ChainsThatMoveElementsBecomeOne) {
  struct Case {
    const char* name;
    std::function<Value(Value)> chain;
    std::string line;
  };
  const Case cases[] = {
      {"reshape, reshape", [](Value x) { return reshape(reshape(x, {6}), {3, 2}); },
       "stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<3x2xf32>"},
      {"transpose, transpose", [](Value x) { return add(x, transpose(transpose(x, {1, 0}), {1, 0})); },
       "stablehlo.add %0, %0 : tensor<2x3xf32>"},
      {"broadcast, broadcast",
       [](Value x) { return broadcast_in_dim(broadcast_in_dim(x, {4, 2, 3}, {1, 2}), {4, 5, 2, 3}, {0, 2, 3}); },
       "stablehlo.broadcast_in_dim %0, dims = [2, 3] : (tensor<2x3xf32>) -> tensor<4x5x2x3xf32>"},
      {"ones, broadcast", [](Value x) { return broadcast_in_dim(reshape(x, {2, 1, 3}), {2, 7, 3}, {0, 1, 2}); },
       "stablehlo.broadcast_in_dim %0, dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x7x3xf32>"},
      {"broadcast, transpose", [](Value x) { return transpose(broadcast_in_dim(x, {4, 2, 3}, {1, 2}), {2, 0, 1}); },
       "stablehlo.broadcast_in_dim %0, dims = [2, 0] : (tensor<2x3xf32>) -> tensor<3x4x2xf32>"},
      {"transpose of ones", [](Value x) { return transpose(reshape(x, {2, 1, 3}), {1, 0, 2}); },
       "stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<1x2x3xf32>"},
      {"widen, narrow", [](Value x) { return convert(convert(x, DType::kF64), DType::kS32); },
       "stablehlo.convert %0 : (tensor<2x3xf32>) -> tensor<2x3xi32>"},
      {"bits and back", [](Value x) { return add(x, bitcast_convert(bitcast_convert(x, DType::kU32), DType::kF32)); },
       "stablehlo.add %0, %0 : tensor<2x3xf32>"},
      {"constants",
       [](Value x) {
         const Value one = x.builder().constant(1.0, {kF32, {}});
         return add(x, transpose(reshape(broadcast_in_dim(one, {6}, {}), {3, 2}), {1, 0}));
       },
       "stablehlo.constant dense<1.0> : tensor<2x3xf32>"},
  };
  for (const Case& each : cases) {
    Builder builder;
    const Value x = builder.parameter({kF32, {2, 3}});
    const std::string text = finish(builder, {each.chain(x)});
    EXPECT_EQ(count(text, each.line), 1u) << each.name << ": " << text;
    EXPECT_EQ(count(text, "    %"), each.name == std::string("constants") ? 2u : 1u) << each.name << ": " << text;
  }
}

TEST(Lean, RoundingIsKept) {
  Builder builder;
  const Value x = builder.parameter({kF32, {4}});
  const std::string text = finish(builder, {convert(convert(x, DType::kBF16), kF32)});
  EXPECT_EQ(count(text, "stablehlo.convert"), 2u) << text;
}

TEST(Lean, SignsAreKept) {
  Builder builder;
  const Value x = builder.parameter({DType::kS32, {4}}), half = builder.parameter({DType::kF16, {4}});
  const std::string text =
      finish(builder, {convert(convert(x, DType::kU64), kF32), convert(convert(half, DType::kBF16), kF32)});
  EXPECT_EQ(count(text, "stablehlo.convert"), 4u) << text;
}

}  // namespace
}  // namespace tpu::stablehlo
