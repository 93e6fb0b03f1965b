// Arguments as lowerings see them.

#include "lowering/op_call.h"

#include <gtest/gtest.h>

#include "lowering/helpers.h"

namespace tpu::lowering {
namespace {

constexpr DType F32 = DType::kF32;

ScalarArg known_int(int64_t value) { return {DType::kS64, Scalar{Scalar::Kind::kInt, value}, Value()}; }
ScalarArg known_double(double value) { return {DType::kF64, Scalar{Scalar::Kind::kDouble, 0, value}, Value()}; }

class OpCallTest : public ::testing::Test {
 protected:
  OpCall call(std::vector<Arg> args) { return OpCall(builder, "op", std::move(args), {{F32, {2, 3}}}, F32); }
  /// Program text so far, with `result` as its result.
  std::string finish(Value result) { return builder.finish({&result, 1}); }
  bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  Builder builder;
};

TEST_F(OpCallTest, KnownScalarsBecomeConstantsOfTheWantedType) {
  const OpCall c = call({known_int(3), known_double(0.5), known_double(2.9), known_int(300)});
  EXPECT_EQ(c.operand(0, F32).type(), (TensorType{F32, {}}));
  EXPECT_EQ(c.known(0)->i, 3);
  EXPECT_EQ(c.dtype(1), DType::kF64);
  EXPECT_EQ(c.tensor(1).dtype(), DType::kF64);
  EXPECT_EQ(c.operand(3, DType::kS8).dtype(), DType::kS8);  // wraps, as in PyTorch
  const Value results[] = {c.operand(0, F32), c.operand(0, DType::kBF16), c.tensor(1), c.operand(3, DType::kS8)};
  const std::string text = builder.finish(results);
  EXPECT_TRUE(has(text, "dense<3.0> : tensor<f32>"));
  EXPECT_TRUE(has(text, "dense<3.0> : tensor<bf16>"));
  EXPECT_TRUE(has(text, "dense<0.5> : tensor<f64>"));
  EXPECT_TRUE(has(text, "stablehlo.convert"));
}

TEST_F(OpCallTest, RunTimeScalarsAreConverted) {
  const Value operand = builder.parameter({DType::kF64, {}});
  const OpCall c = call({ScalarArg{DType::kF64, std::nullopt, operand}});
  EXPECT_FALSE(c.known(0).has_value());
  EXPECT_EQ(c.tensor(0).id(), operand.id());
  EXPECT_TRUE(has(finish(c.operand(0, F32)), "stablehlo.convert %0 : (tensor<f64>) -> tensor<f32>"));
}

TEST_F(OpCallTest, PlainArgumentsAndFallbacks) {
  const OpCall c = call({None{}, true, int64_t{7}, 2.5, Dims{1, 2}, std::vector<double>{0.5},
                         std::vector<bool>{true, false}, std::string("mean"), DType::kBF16});
  EXPECT_TRUE(c.is_none(0));
  EXPECT_EQ(c.integer_or(0, 4), 4);
  EXPECT_EQ(c.integer_or(2, 4), 7);
  EXPECT_EQ(c.real_or(0, 1.5), 1.5);
  EXPECT_TRUE(c.boolean(1));
  EXPECT_TRUE(c.boolean_or(0, true));
  EXPECT_EQ(c.real(2), 7.0);
  EXPECT_EQ(c.real(3), 2.5);
  EXPECT_EQ(c.ints(4), (Dims{1, 2}));
  EXPECT_EQ(c.ints(2), (Dims{7}));
  EXPECT_EQ(c.list_size(4), 2u);
  EXPECT_EQ(c.reals(5), std::vector<double>{0.5});
  EXPECT_EQ(c.booleans(6), (std::vector<bool>{true, false}));
  EXPECT_EQ(c.string(7), "mean");
  EXPECT_EQ(c.dtype_arg(8), DType::kBF16);
  EXPECT_FALSE(c.optional_tensor(0).has_value());
}

TEST_F(OpCallTest, AMismatchNamesTheOperatorAndTheArgument) {
  const OpCall c = call({int64_t{7}});
  try {
    c.tensor(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "op: argument 0 is an int, the lowering asks for a tensor");
  }
  EXPECT_THROW(c.string(0), Error);
  EXPECT_THROW(c.random(), Error);
}

TEST_F(OpCallTest, ChecksAreRecordedInOrder) {
  const OpCall c = call({});
  const Value bad = builder.parameter({DType::kBool, {}});
  c.check(bad, Code::kIndex, "first");
  c.check(bad, Code::kInternal, "second");
  ASSERT_EQ(c.checks().size(), 2u);
  EXPECT_EQ(c.checks()[0].code, Code::kIndex);
  EXPECT_EQ(c.checks()[1].message, "second");
  EXPECT_THROW(c.check(builder.parameter({F32, {}}), Code::kIndex, ""), Error);
}

}  // namespace
}  // namespace tpu::lowering
