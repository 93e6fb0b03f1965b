// Captured graphs: nodes set aside become the body of one plan, and nothing of the capture can be read or kept.

#include "graph/capture.h"

#include <gtest/gtest.h>

#include "stablehlo/ops.h"

namespace tpu::graph {
namespace {

namespace hlo = stablehlo;
using runtime::StorageSlot;
using runtime::ValueRef;
using DeviceValue = runtime::Value;

const TensorType kPair{DType::kF32, {2}};

std::vector<Value> lower_sum(const lowering::OpCall& call) { return {hlo::add(call.tensor(0), call.tensor(1))}; }
const lowering::Row kSum{.name = "sum_of_two", .lower = lower_sum};

std::vector<Value> lower_draw(const lowering::OpCall& call) {
  return {hlo::broadcast_in_dim(hlo::convert(call.random().offset, DType::kF32), {2}, {})};
}
const lowering::Row kDraw{.name = "draw", .lower = lower_draw, .random_factor = 1};

Plan plan_of(const lowering::Row& row, size_t inputs) {
  Plan plan;
  plan.id = next_plan_id();
  plan.row = &row;
  plan.name = row.name;
  for (uint32_t i = 0; i < inputs; ++i) {
    plan.inputs.push_back(kPair);
    plan.args.emplace_back(TensorRef{i, Layout::make(kPair, {kPair.dtype, kPair.dims, {1}}, 0, false), 0});
  }
  plan.results = {kPair};
  plan.outputs = {{kPair, 0, {0}, {}, {}}};
  if (row.random_factor > 0) {
    plan.slots = {Slot::kInt, Slot::kInt};
    plan.random_slot = 0;
  }
  return plan;
}

std::string text_of(const CapturedGraph& graph) {
  hlo::Builder builder;
  std::vector<Value> inputs, words;
  for (const TensorType& type : graph.plan.inputs) inputs.push_back(builder.parameter(type));
  for (size_t i = 0; i < graph.plan.slots.size(); ++i) words.push_back(builder.parameter({DType::kS64, {}}));
  return builder.finish(lower(graph.plan, builder, {inputs, words}, {}).outputs);
}

class CaptureTest : public testing::Test {
 protected:
  ValueRef sum(const ValueRef& a, const ValueRef& b) {
    StorageSlot made(ValueRef(), 0);
    StorageSlot* const targets[] = {&made};
    const ValueRef inputs[] = {a, b};
    capture_.record(0, sum_, inputs, {}, targets, {}, {});
    return made.load();
  }

  const Plan sum_ = plan_of(kSum, 2), draw_ = plan_of(kDraw, 0);
  CallCapture capture_{0};
};

TEST_F(CaptureTest, NodesBecomeOnePlan) {
  EXPECT_EQ(Capture::current(), &capture_);
  const ValueRef a = capture_.argument(kPair), b = capture_.argument(kPair);
  const ValueRef first = sum(a, b);
  const ValueRef results[] = {sum(first, a)};
  const int32_t replaces[] = {1};
  const CapturedFunction function = capture_.finish(results, replaces);
  const CapturedGraph& graph = *function.graph;
  EXPECT_EQ(graph.sources, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(graph.plan.outputs[0].takes_over, 1U);
  const std::string text = text_of(graph);
  size_t additions = 0;
  for (size_t at = text.find("stablehlo.add"); at != std::string::npos; at = text.find("stablehlo.add", at + 1)) {
    ++additions;
  }
  EXPECT_EQ(additions, 2U) << text;
}

TEST_F(CaptureTest, RandomWordsAreOperandsAndOthersConstants) {
  StorageSlot made(ValueRef(), 0);
  StorageSlot* const targets[] = {&made};
  capture_.next_random(
      {{std::make_shared<const RandomStream>(RandomStream{nullptr, [](uint64_t) { return RandomDraw{7, 9}; }, {}}),
        1}});
  const uint64_t words[] = {0, 0};
  capture_.record(0, draw_, {}, words, targets, {}, {});
  const ValueRef results[] = {made.load()};
  const int32_t replaces[] = {-1};
  const CapturedFunction function = capture_.finish(results, replaces);
  const CapturedGraph& graph = *function.graph;
  EXPECT_EQ(graph.plan.slots.size(), 2U);
  ASSERT_EQ(function.draws.size(), 1U);
  EXPECT_EQ(function.draws[0]().offset, 9U);
  EXPECT_NE(text_of(graph).find("tensor<i64>"), std::string::npos) << text_of(graph);
}

TEST_F(CaptureTest, ARandomNodeMustDraw) {
  StorageSlot made(ValueRef(), 0);
  StorageSlot* const targets[] = {&made};
  const uint64_t words[] = {0, 0};
  EXPECT_THROW(capture_.record(0, draw_, {}, words, targets, {}, {}), Error);
}

TEST_F(CaptureTest, ReadingAndWritingOutsideIsRefused) {
  const ValueRef a = capture_.argument(kPair);
  const ValueRef inside = sum(a, a);
  EXPECT_THROW(capture_.refuse_to_read(*inside), Error);
  EXPECT_THROW(capture_.refuse_to_read(*a), Error);
  EXPECT_FALSE(capture_.blocked().empty());
  const ValueRef outside(new DeviceValue(kPair, 0, DeviceValue::State::kLaunched));
  EXPECT_NO_THROW(capture_.refuse_to_read(*outside));
  StorageSlot theirs(outside, 0);
  StorageSlot* const targets[] = {&theirs};
  const ValueRef inputs[] = {a, a};
  EXPECT_THROW(capture_.record(0, sum_, inputs, {}, targets, {}, {}), Error);
  EXPECT_EQ(theirs.load(), outside);
  EXPECT_THROW(capture_.record(1, sum_, inputs, {}, targets, {}, {}), Error);
}

TEST(CaptureEndTest, WhatIsLeftFails) {
  ValueRef inside;
  {
    CallCapture capture(0);
    const ValueRef a = capture.argument(kPair);
    const Plan plan = plan_of(kSum, 2);
    StorageSlot made(ValueRef(), 0);
    StorageSlot* const targets[] = {&made};
    const ValueRef inputs[] = {a, a};
    {
      const CallCapture inner(0);
      EXPECT_EQ(Capture::current(), &inner);
    }
    EXPECT_EQ(Capture::current(), &capture);
    capture.record(0, plan, inputs, {}, targets, {}, {});
    inside = made.load();
    EXPECT_EQ(inside->state(), DeviceValue::State::kCaptured);
  }
  EXPECT_EQ(Capture::current(), nullptr);
  ASSERT_EQ(inside->state(), DeviceValue::State::kFailed);
  EXPECT_NE(std::string(inside->error()->what()).find("captured"), std::string::npos);
}

}  // namespace
}  // namespace tpu::graph
