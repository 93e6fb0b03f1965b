// Branches, loops and scans of captured graphs: their programs, word for word.

#include "graph/control_flow.h"

#include <gtest/gtest.h>

#include <functional>

#include "graph/capture.h"
#include "stablehlo/ops.h"

namespace tpu::graph {
namespace {

namespace hlo = stablehlo;
using runtime::StorageSlot;
using runtime::ValueRef;

const TensorType kPair{DType::kF32, {2}};
const TensorType kFlag{DType::kBool, {}};

std::vector<Value> lower_sum(const lowering::OpCall& call) { return {hlo::add(call.tensor(0), call.tensor(1))}; }
std::vector<Value> lower_product(const lowering::OpCall& call) {
  return {hlo::multiply(call.tensor(0), call.tensor(1))};
}
std::vector<Value> lower_less(const lowering::OpCall& call) {
  const Value x = hlo::reshape(hlo::slice(call.tensor(0), {0}, {1}, {1}), {});
  const Value y = hlo::reshape(hlo::slice(call.tensor(1), {0}, {1}, {1}), {});
  return {hlo::compare(x, y, hlo::Compare::kLt)};
}
std::vector<Value> lower_draw(const lowering::OpCall& call) {
  return {hlo::broadcast_in_dim(hlo::convert(call.random().offset, DType::kF32), {2}, {})};
}
const lowering::Row kSum{.name = "sum_of_two", .lower = lower_sum};
const lowering::Row kProduct{.name = "product_of_two", .lower = lower_product};
const lowering::Row kLess{.name = "first_is_less", .lower = lower_less};
const lowering::Row kDraw{.name = "draw", .lower = lower_draw, .random_factor = 1};

Plan plan_of(const lowering::Row& row, const TensorType& result, size_t inputs) {
  Plan plan;
  plan.id = next_plan_id();
  plan.row = &row;
  plan.name = row.name;
  for (uint32_t i = 0; i < inputs; ++i) {
    plan.inputs.push_back(kPair);
    plan.args.emplace_back(TensorRef{i, Layout::make(kPair, {kPair.dtype, kPair.dims, {1}}, 0, false), 0});
  }
  plan.results = {result};
  plan.outputs = {{result, 0, iota(result.rank()), {}, {}, {}}};
  if (row.random_factor > 0) {
    plan.slots = {Slot::kInt, Slot::kInt};
    plan.random_slot = 0;
  }
  return plan;
}

ValueRef record(CallCapture& capture, const Plan& plan, std::vector<ValueRef> inputs) {
  StorageSlot made(ValueRef(), 0);
  StorageSlot* const targets[] = {&made};
  const std::vector<uint64_t> words(plan.slots.size(), 0);
  capture.record(0, plan, inputs, words, targets, {}, {});
  return made.load();
}

using Body = std::function<std::vector<ValueRef>(CallCapture&, const std::vector<ValueRef>&)>;

ControlFlow::Part captured(size_t arguments, const Body& body) {
  CallCapture capture(0);
  std::vector<ValueRef> given;
  for (size_t i = 0; i < arguments; ++i) given.push_back(capture.argument(kPair));
  const std::vector<ValueRef> results = body(capture, given);
  return part_of(*capture.finish(results, std::vector<int32_t>(results.size(), -1)).graph);
}

std::string text_of(const Plan& plan) {
  hlo::Builder builder;
  std::vector<Value> inputs, words;
  for (const TensorType& type : plan.inputs) inputs.push_back(builder.parameter(type));
  for (size_t i = 0; i < plan.slots.size(); ++i) words.push_back(builder.parameter({DType::kS64, {}}));
  return builder.finish(lower(plan, builder, {inputs, words}, {}).outputs);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class ControlFlowTest : public testing::Test {
 protected:
  const Plan sum_ = plan_of(kSum, kPair, 2), product_ = plan_of(kProduct, kPair, 2), less_ = plan_of(kLess, kFlag, 2),
             draw_ = plan_of(kDraw, kPair, 0);
  const Body add_ = [this](CallCapture& c, const std::vector<ValueRef>& in) {
    return std::vector<ValueRef>{record(c, sum_, {in[0], in[1]})};
  };
  const Body multiply_ = [this](CallCapture& c, const std::vector<ValueRef>& in) {
    return std::vector<ValueRef>{record(c, product_, {in[0], in[1]})};
  };
  const Body is_less_ = [this](CallCapture& c, const std::vector<ValueRef>& in) {
    return std::vector<ValueRef>{record(c, less_, {in[0], in[1]})};
  };
};

TEST_F(ControlFlowTest, ABranchIsAnIf) {
  const ControlFlow flow{ControlFlow::Kind::kBranch, {captured(2, add_), captured(2, multiply_)}};
  const TensorType arguments[] = {kFlag, kPair, kPair};
  EXPECT_EQ(text_of(control_flow_plan("cond", flow, arguments)), R"(module @program {
  func.func public @main(%0: tensor<i1>, %1: tensor<2xf32>, %2: tensor<2xf32>) -> (tensor<2xf32>) {
    %5 = "stablehlo.if"(%0) ({
      %3 = stablehlo.add %1, %2 : tensor<2xf32>
      stablehlo.return %3 : tensor<2xf32>
    }, {
      %4 = stablehlo.multiply %1, %2 : tensor<2xf32>
      stablehlo.return %4 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    return %5 : tensor<2xf32>
  }
}
)");
}

TEST_F(ControlFlowTest, ALoopIsAWhile) {
  ControlFlow flow{ControlFlow::Kind::kWhile, {captured(2, is_less_), captured(2, add_)}};
  flow.carried = 1;
  const TensorType arguments[] = {kPair, kPair};
  EXPECT_EQ(text_of(control_flow_plan("while_loop", flow, arguments)), R"(module @program {
  func.func public @main(%0: tensor<2xf32>, %1: tensor<2xf32>) -> (tensor<2xf32>) {
    %12, %13 = "stablehlo.while"(%0, %1) ({
    ^bb0(%2: tensor<2xf32>, %3: tensor<2xf32>):
      %4 = "stablehlo.slice"(%2) {start_indices = array<i64: 0>, limit_indices = array<i64: 1>, strides = array<i64: 1>} : (tensor<2xf32>) -> tensor<1xf32>
      %5 = stablehlo.reshape %4 : (tensor<1xf32>) -> tensor<f32>
      %6 = "stablehlo.slice"(%3) {start_indices = array<i64: 0>, limit_indices = array<i64: 1>, strides = array<i64: 1>} : (tensor<2xf32>) -> tensor<1xf32>
      %7 = stablehlo.reshape %6 : (tensor<1xf32>) -> tensor<f32>
      %8 = stablehlo.compare LT, %5, %7, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
    }, {
    ^bb0(%9: tensor<2xf32>, %10: tensor<2xf32>):
      %11 = stablehlo.add %9, %10 : tensor<2xf32>
      stablehlo.return %11, %10 : tensor<2xf32>, tensor<2xf32>
    }) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return %12 : tensor<2xf32>
  }
}
)");
}

TEST_F(ControlFlowTest, AScanTakesAndGivesSlices) {
  ControlFlow flow{ControlFlow::Kind::kScan, {captured(2, [&](CallCapture& c, const std::vector<ValueRef>& in) {
                     return std::vector<ValueRef>{add_(c, in)[0], multiply_(c, in)[0]};
                   })}};
  flow.carried = 1;
  flow.sliced = 1;
  flow.length = 5;
  const TensorType arguments[] = {kPair, {DType::kF32, {5, 2}}};
  const Plan& plan = control_flow_plan("scan", flow, arguments);
  ASSERT_EQ(plan.outputs.size(), 2U);
  EXPECT_EQ(plan.outputs[0].base, kPair);
  EXPECT_EQ(plan.outputs[1].base, (TensorType{DType::kF32, {5, 2}}));
  const std::string text = text_of(plan);
  EXPECT_EQ(count(text, "stablehlo.while"), 1U) << text;
  EXPECT_EQ(count(text, "stablehlo.dynamic_slice"), 1U) << text;
  EXPECT_EQ(count(text, "stablehlo.dynamic_update_slice"), 1U) << text;
  EXPECT_EQ(count(text, "stablehlo.multiply"), 1U) << text;
}

TEST_F(ControlFlowTest, AScanDrawsOnceForAllSlices) {
  const auto stream =
      std::make_shared<const RandomStream>(RandomStream{nullptr, [](uint64_t) { return RandomDraw{7, 9}; }, {}});
  const auto draw_and_add = [&](CallCapture& c, const std::vector<ValueRef>& in) {
    c.next_random({{stream, 3}});
    const ValueRef drawn = record(c, draw_, {});
    return std::vector<ValueRef>{record(c, sum_, {in[0], drawn})};
  };
  ControlFlow flow{ControlFlow::Kind::kScan, {captured(1, draw_and_add)}};
  flow.sliced = 1;
  flow.length = 5;
  EXPECT_EQ(random_blocks(flow), 15U);
  const TensorType arguments[] = {{DType::kF32, {5, 2}}};
  const Plan& plan = control_flow_plan("map", flow, arguments);
  EXPECT_EQ(plan.random_slot, 0U);
  EXPECT_EQ(plan.slots.size(), 2U);
  EXPECT_NE(text_of(plan).find("dense<3> : tensor<i64>"), std::string::npos) << text_of(plan);
}

TEST_F(ControlFlowTest, ConstantsOfPartsAreInputs) {
  const ValueRef outside(new runtime::Value(kPair, 0, runtime::Value::State::kLaunched));
  const auto add_constant = [&](CallCapture& c, const std::vector<ValueRef>& in) {
    return std::vector<ValueRef>{record(c, sum_, {in[0], outside})};
  };
  const ControlFlow flow{ControlFlow::Kind::kBranch, {captured(2, add_), captured(2, add_constant)}};
  const TensorType arguments[] = {kFlag, kPair, kPair};
  const Plan& plan = control_flow_plan("cond", flow, arguments);
  ASSERT_EQ(plan.inputs.size(), 4U);
  EXPECT_EQ(plan.control_flow->parts[1].first_constant, 3U);
  EXPECT_NE(text_of(plan).find("stablehlo.add %1, %3"), std::string::npos) << text_of(plan);
}

}  // namespace
}  // namespace tpu::graph
