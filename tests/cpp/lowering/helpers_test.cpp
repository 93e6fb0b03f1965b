// Text that the shared helpers emit.

#include "lowering/helpers.h"

#include <gtest/gtest.h>

namespace tpu::lowering {
namespace {

using stablehlo::Reducer;
constexpr DType F32 = DType::kF32;

class HelpersTest : public ::testing::Test {
 protected:
  Value parameter(DType dtype, Dims dims) { return builder.parameter({dtype, std::move(dims)}); }
  std::string finish(Value result) { return builder.finish({&result, 1}); }
  bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  Builder builder;
};

TEST_F(HelpersTest, BroadcastDropsExpandedDimsFirst) {
  const std::string text = finish(broadcast_to(parameter(F32, {4, 1, 3}), {2, 4, 5, 3}));
  EXPECT_TRUE(has(text, "stablehlo.reshape %0 : (tensor<4x1x3xf32>) -> tensor<4x3xf32>"));
  EXPECT_TRUE(has(text, "broadcast_in_dim %1, dims = [1, 3] : (tensor<4x3xf32>) -> tensor<2x4x5x3xf32>"));
}

TEST_F(HelpersTest, BroadcastToEqualSizesIsNothing) {
  const Value x = parameter(F32, {1, 3});
  EXPECT_EQ(broadcast_to(x, {1, 3}).id(), x.id());
}

TEST_F(HelpersTest, AxesWrap) {
  EXPECT_EQ(wrap_axis(-1, 3), 2);
  EXPECT_EQ(wrap_axis(-1, 0), 0);
  EXPECT_THROW(wrap_axis(3, 3), Error);
  EXPECT_EQ(wrap_axes({}, 3), (Dims{0, 1, 2}));
  EXPECT_EQ(wrap_axes({-1, 0}, 3), (Dims{0, 2}));
}

TEST_F(HelpersTest, ReductionsKeepAndRestoreAxes) {
  const Value x = parameter(F32, {2, 3, 4});
  EXPECT_EQ(reduce_axes(x, Reducer::kAdd, {1}, true).dims(), (Dims{2, 1, 4}));
  const Value sum = reduce_axes(x, Reducer::kAdd, {1}, false);
  EXPECT_EQ(sum.dims(), (Dims{2, 4}));
  EXPECT_TRUE(
      has(finish(broadcast_over(sum, x.dims(), {1})), "dims = [0, 2] : (tensor<2x4xf32>) -> tensor<2x3x4xf32>"));
}

TEST_F(HelpersTest, SumToUndoesBroadcasting) {
  const Value x = parameter(F32, {5, 2, 3});
  EXPECT_EQ(sum_to(x, {5, 2, 3}).id(), x.id());
  const Value reduced = sum_to(x, {2, 1});
  EXPECT_EQ(reduced.dims(), (Dims{2, 1}));
  EXPECT_TRUE(has(finish(reduced), "across dimensions = [0, 2]"));
}

TEST_F(HelpersTest, UnsqueezeAndSqueeze) {
  const Value x = parameter(F32, {2, 1});
  EXPECT_EQ(unsqueeze(x, -1).dims(), (Dims{2, 1, 1}));
  EXPECT_EQ(unsqueeze(x, 0).dims(), (Dims{1, 2, 1}));
  EXPECT_EQ(squeeze(x, 1).dims(), (Dims{2}));
  EXPECT_EQ(squeeze(x, 0).id(), x.id());
}

TEST_F(HelpersTest, ConversionsFollowPyTorch) {
  const Value x = parameter(F32, {2}), z = parameter(DType::kC64, {2});
  EXPECT_EQ(convert_like_torch(x, F32).id(), x.id());
  const Value flags = convert_like_torch(x, DType::kBool);
  const Value results[] = {flags, convert_like_torch(x, DType::kU8), convert_like_torch(z, DType::kF64),
                           convert_like_torch(x, DType::kC128)};
  const std::string text = builder.finish(results);
  EXPECT_TRUE(has(text, "stablehlo.compare NE, %0, %2, FLOAT"));
  EXPECT_TRUE(has(text, "stablehlo.convert %0 : (tensor<2xf32>) -> tensor<2xi32>"));  // low bits of a wide integer
  EXPECT_TRUE(has(text, "stablehlo.real %1"));
  EXPECT_TRUE(has(text, "stablehlo.complex"));
}

}  // namespace
}  // namespace tpu::lowering
