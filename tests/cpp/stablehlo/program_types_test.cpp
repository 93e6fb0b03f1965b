// Types read back from text.

#include "stablehlo/program_types.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "stablehlo/builder.h"
#include "stablehlo/ops.h"

namespace tpu::stablehlo {
namespace {

TEST(ProgramTypes, AreThoseThatTheBuilderPrinted) {
  ProgramTypes wanted;
  for (int number = 0; number < kDTypeCount; ++number) {
    wanted.parameters.push_back({static_cast<DType>(number), {}});
    wanted.parameters.push_back({static_cast<DType>(number), {2, 0, 13}});
  }
  Builder builder;
  std::vector<Value> values;
  for (const TensorType& type : wanted.parameters) values.push_back(builder.parameter(type));
  builder.set_aliased_output(1, 0);
  std::vector<Value> results = {values[1], values[2], values[20]};
  for (Value value : results) wanted.results.push_back(value.type());
  EXPECT_EQ(program_types(builder.finish(results)), wanted);
}

TEST(ProgramTypes, MayBeNone) {
  Builder builder;
  EXPECT_EQ(program_types(builder.finish({})), ProgramTypes{});
}

TEST(ProgramTypes, OfOtherTextAreRefused) {
  for (const char* text : {
           "",
           "{broken",
           "module { func.func @main(%0: tensor<2xf32>)",
           "module { func.func @main(%0: tensor<2xf32) -> (tensor<f32>) {\n",
           "module { func.func @main(%0: tensor<2xf31>) -> (tensor<f32>) {\n",
           "module { func.func @main(%0: tensor<2>) -> (tensor<f32>) {\n",
           "module { func.func @main(%0: tensor<99999999999999999999xf32>) -> (tensor<f32>) {\n",
           "module { func.func @main(%0: tensor<?xf32>) -> (tensor<f32>) {\n",
       }) {
    EXPECT_THROW(program_types(text), Error) << text;
  }
}

TEST(ProgramTypes, ReadWellInMessages) {
  const ProgramTypes types{{{DType::kF32, {2, 3}}, {DType::kS64, {}}}, {{DType::kC64, {1}}}};
  EXPECT_EQ(to_string(types), "(float32[2, 3], int64[]) -> (complex64[1])");
}

}  // namespace
}  // namespace tpu::stablehlo
