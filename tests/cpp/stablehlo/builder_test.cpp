// Constants, parameters and regions of the builder.

#include "stablehlo/builder.h"

#include <gtest/gtest.h>

#include <cmath>
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

}  // namespace
}  // namespace tpu::stablehlo
