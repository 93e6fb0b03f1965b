// Captures of tensors where they lie: slots from outside get back what they held, and a graph knows what it reads and
// writes.

#include "graph/slot_capture.h"

#include <gtest/gtest.h>

#include "stablehlo/ops.h"

namespace tpu::graph {
namespace {

namespace hlo = stablehlo;
using runtime::Ref;
using runtime::StorageSlot;
using runtime::ValueRef;
using DeviceValue = runtime::Value;

const TensorType kPair{DType::kF32, {2}};

std::vector<Value> lower_sum(const lowering::OpCall& call) { return {hlo::add(call.tensor(0), call.tensor(1))}; }
const lowering::Row kSum{.name = "sum_of_two", .lower = lower_sum};

const Plan& sum_plan() {
  static const Plan plan = [] {
    Plan made;
    made.id = next_plan_id();
    made.row = &kSum;
    made.name = kSum.name;
    for (uint32_t i = 0; i < 2; ++i) {
      made.inputs.push_back(kPair);
      made.args.emplace_back(TensorRef{i, Layout::make(kPair, {kPair.dtype, kPair.dims, {1}}, 0, false), 0});
    }
    made.results = {kPair};
    made.outputs = {{kPair, 0, {0}, {}, {}}};
    return made;
  }();
  return plan;
}

/// A storage with a value that some launch has made.
class Storage {
 public:
  Storage() : slot_(new StorageSlot(ValueRef(new DeviceValue(kPair, 0, DeviceValue::State::kLaunched)), 0)) {}
  ~Storage() { drop(); }
  void drop() {
    if (slot_ != nullptr) slot_->disown();
    slot_ = nullptr;
  }
  StorageSlot& operator*() const { return *slot_; }
  StorageSlot* operator->() const { return slot_; }

 private:
  StorageSlot* slot_;
};

class Stream {
 public:
  RandomStream get() {
    return {this,
            [this](uint64_t blocks) {
              const RandomDraw now = state_;
              state_.offset += blocks;
              return now;
            },
            [this](RandomDraw state) { state_ = state; }};
  }
  RandomDraw state_{1, 10};
};

void record_sum(SlotCapture& capture, StorageSlot& into, const StorageSlot& a, const StorageSlot& b) {
  StorageSlot* const targets[] = {&into};
  const ValueRef inputs[] = {a.load(), b.load()};
  capture.record(0, sum_plan(), inputs, {}, targets, {}, {});
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(SlotCaptureTest, SlotsFromOutsideGetBackWhatTheyHeld) {
  Stream stream;
  const Storage a, b;
  const ValueRef before = a->load();
  {
    SlotCapture capture(0, SlotCapture::Use::kReplay, 0, stream.get());
    EXPECT_EQ(SlotCapture::current(), &capture);
    record_sum(capture, *a, *a, *b);
    EXPECT_FALSE(a->load() == before);
  }
  EXPECT_EQ(SlotCapture::current(), nullptr);
  EXPECT_EQ(a->load(), before);
}

TEST(SlotCaptureTest, AGraphGivesWhatStillExists) {
  Stream stream;
  const Storage a, b;
  std::unique_ptr<SlotGraph> graph;
  {
    SlotCapture capture(0, SlotCapture::Use::kReplay, 0, stream.get());
    Storage kept, dropped;
    record_sum(capture, *dropped, *a, *b);
    record_sum(capture, *kept, *dropped, *b);
    record_sum(capture, *a, *kept, *kept);
    dropped.drop();
    graph = capture.finish();
    EXPECT_EQ(kept->load()->state(), DeviceValue::State::kFailed);  // it has no value before a launch
  }
  const std::string text = graph->text({}, false);
  EXPECT_EQ(count(text, "stablehlo.add"), 3U) << text;
  EXPECT_NE(text.find("-> (tensor<2xf32>, tensor<2xf32>)"), std::string::npos) << text;
  EXPECT_EQ(count(text, "tf.aliasing_output"), 1U) << text;  // the new `a` lies where the old one was
}

TEST(SlotCaptureTest, WithoutEffectThereIsNoGraph) {
  Stream stream;
  const Storage a;
  SlotCapture capture(0, SlotCapture::Use::kOnce, 1, stream.get());
  Storage dropped;
  record_sum(capture, *dropped, *a, *a);
  dropped.drop();
  EXPECT_EQ(capture.finish(), nullptr);
}

TEST(SlotCaptureTest, ReadingIsRefused) {
  Stream stream;
  const Storage a, inside;
  SlotCapture once(0, SlotCapture::Use::kOnce, 1, stream.get());
  record_sum(once, *inside, *a, *a);
  EXPECT_NO_THROW(once.refuse_to_read(*a->load()));
  EXPECT_THROW(once.refuse_to_read(*inside->load()), Error);
  EXPECT_NO_THROW(once.refuse_host_data());
  const SlotCapture replay(0, SlotCapture::Use::kReplay, 0, stream.get());
  EXPECT_THROW(replay.refuse_to_read(*a->load()), Error);
  EXPECT_THROW(replay.refuse_host_data(), Error);
  EXPECT_THROW(replay.refuse_to_resize(*a), Error);
  EXPECT_FALSE(replay.blocked().empty());
}

TEST(SlotCaptureTest, AReplayedCaptureDrawsNothingYet) {
  Stream stream;
  {
    SlotCapture capture(0, SlotCapture::Use::kReplay, 0, stream.get());
    stream.get().take(5);
    capture.finish();
  }
  EXPECT_EQ(stream.state_.offset, 10U);
  {
    SlotCapture capture(0, SlotCapture::Use::kOnce, 0, stream.get());
    stream.get().take(5);
    capture.finish();
  }
  EXPECT_EQ(stream.state_.offset, 15U);
}

TEST(StorageSlotTest, TheLastOwnerTakesTheValueWithIt) {
  const ValueRef value(new DeviceValue(kPair, 0, DeviceValue::State::kLaunched));
  auto* const slot = new StorageSlot(value, 0);
  const uint64_t number = slot->number();
  EXPECT_EQ(StorageSlot::count(), number);
  EXPECT_EQ(StorageSlot::holding(*value).get(), slot);
  const Ref<StorageSlot> reference(slot);
  slot->own();
  slot->disown();
  EXPECT_TRUE(slot->owned());
  EXPECT_EQ(slot->load(), value);
  slot->disown();
  EXPECT_FALSE(slot->owned());
  EXPECT_FALSE(slot->load());
  EXPECT_FALSE(StorageSlot::holding(*value));
}

}  // namespace
}  // namespace tpu::graph
