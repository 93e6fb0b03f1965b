#pragma once
// SlotCapture and SlotGraph: a captured graph that works on tensors where they lie. Tensors are known by their storage
// slot, so that a launch reads what they hold then and writes to the same tensors; nothing has to be declared.
//
// While the capture lasts, slots hold values that stand for results. When it ends, tensors from outside get back what
// they held, and the graph has taken note of every tensor that it wrote and that still exists.
//
// Graphs of the same nodes share one plan, and so one program, whichever tensors and numbers they work on: capturing
// the same step anew compiles nothing.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/capture.h"
#include "graph/recorder.h"

namespace tpu::graph {

/// A reference to a slot that keeps its value too.
class OwnedSlot {
 public:
  explicit OwnedSlot(runtime::Ref<runtime::StorageSlot> slot) : slot_(std::move(slot)) { slot_->own(); }
  OwnedSlot(OwnedSlot&&) noexcept = default;
  OwnedSlot& operator=(OwnedSlot&&) = delete;
  ~OwnedSlot() {
    if (slot_) slot_->disown();
  }
  runtime::StorageSlot& operator*() const { return *slot_; }
  runtime::StorageSlot* operator->() const { return slot_.get(); }

 private:
  runtime::Ref<runtime::StorageSlot> slot_;
};

/// What a slot capture ends with. Launched by one thread at a time.
class SlotGraph {
 public:
  /// Records one node: reads the tensors, draws random numbers, writes the tensors that still exist.
  void launch(Location location);
  /// The same with the random numbers that were drawn during the capture. REQUIRES: the first launch.
  void launch_as_captured(Location location);

  int device() const { return device_; }
  /// The program, as captured_program gives it.
  std::string text(const LayoutPolicy& policy, bool locations) const;

 private:
  friend class SlotCapture;
  struct Source {
    std::unique_ptr<OwnedSlot> slot;  // or a constant
    runtime::ValueRef constant;
    // Of what the slot held, and of what the graph reads. It is stored in the type of the plan's input.
    TensorType type;
    uint64_t changing = 0;  // Bounds::dims
  };
  struct Target {
    runtime::Ref<runtime::StorageSlot> slot;
    uint32_t output = 0;
  };
  /// What a generator stood at when the capture began, and by how much a launch moves it.
  struct Stream {
    std::shared_ptr<const RandomStream> stream;
    RandomDraw begin;
    uint64_t blocks = 0;
  };
  struct Draw {
    size_t stream = 0;
    uint64_t blocks = 0;
  };

  /// Becomes a graph of that plan, with the words of a recording of it.
  void adopt(const CapturedGraph& known, const std::vector<uint64_t>& words);
  void record(std::vector<uint64_t> words, Location location);
  runtime::ValueRef value_of(const Source& source, const TensorType& stored, Location location) const;
  /// Sets the words of random nodes to what a launch now draws.
  void draw(std::vector<uint64_t>& words) const;

  int device_ = 0;
  const CapturedGraph* graph_ = nullptr;  // its plan only; shared
  std::vector<Source> sources_;           // per input of the plan
  std::vector<Target> targets_;
  std::unique_ptr<SlotGraph> initial_;  // what the first launch must find
  std::vector<OutputForm> forms_;       // per output of the plan
  std::vector<uint64_t> words_;         // of the plan's slots, as captured
  std::vector<Stream> streams_;
  std::vector<Draw> draws_;  // per random node
};

class SlotCapture final : public Capture {
 public:
  enum class Use : uint8_t {
    kOnce,    // launched once, as soon as it has ended, by the same thread
    kReplay,  // launched at any time: must not depend on what tensors or the host hold during the capture
  };
  /// `origin` names what is captured, so that numbers which change from one capture of it to the next are known to
  /// vary; 0: nothing is known. `stream`: the device's default generator.
  SlotCapture(int device, Use use, uint64_t origin, RandomStream stream);
  /// Without finish() tensors from outside get back what they held.
  ~SlotCapture() override;

  /// The slot capture that is active on this thread, or nullptr.
  static SlotCapture* current();

  Use use() const { return use_; }
  uint64_t origin() const { return origin_; }
  /// Number of this capture among all.
  uint64_t number() const { return number_; }

  void refuse_to_read(const runtime::Value& value) const override;
  void refuse_host_data() const override;
  void refuse_to_resize(const runtime::StorageSlot& slot) const override;
  bool may_store(const runtime::StorageSlot& slot) const override;

  /// Ends the capture; the graph is null if nothing was recorded that a tensor still holds.
  /// `lasting`: tensors that the capture made, and that the next capture of the same step will find and write again,
  /// such as an optimizer's state. What they hold at first is an argument of the graph too, so that both are one graph.
  std::unique_ptr<SlotGraph> finish(std::span<runtime::StorageSlot* const> lasting = {});

 private:
  void before_write(std::span<runtime::StorageSlot* const> targets) override;
  Wire from_outside(const runtime::ValueRef& value, Location location) override;
  void appended(const NodeRecord& node, std::vector<DrawRandom> draws) override;

  struct Written {
    runtime::Ref<runtime::StorageSlot> slot;
    runtime::ValueRef before;   // of a slot from outside
    runtime::ValueRef initial;  // of a slot that the capture made, if it was written again
  };
  struct Result {
    uint32_t output = 0;      // of the recording
    int32_t takes_over = -1;  // parameter
    OutputForm form;
    runtime::Ref<runtime::StorageSlot> slot;
  };
  bool is_outside(const runtime::StorageSlot& slot) const { return slot.number() <= slots_before_; }
  size_t stream_of(const std::shared_ptr<const RandomStream>& stream);
  std::vector<Result> results();
  std::unique_ptr<SlotGraph> take_initial_values(std::span<runtime::StorageSlot* const> lasting,
                                                 std::vector<Result>& results);
  void restore();

  const Use use_;
  const uint64_t origin_;
  const uint64_t number_;
  const uint64_t slots_before_;
  bool finished_ = false;
  std::vector<SlotGraph::Source> sources_;
  std::unordered_map<runtime::StorageSlot*, size_t> written_index_;
  std::vector<Written> written_;
  std::vector<SlotGraph::Stream> streams_;
  std::vector<SlotGraph::Draw> draws_;
  std::vector<uint32_t> random_words_;  // of the recording, two per draw
};

}  // namespace tpu::graph
