#pragma once
// Captures of tensors where they lie (graph/slot_capture.h): StepCapture for one launch at once, ReplayGraph for
// torch.accelerator.Graph.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "compile/backward_here.h"
#include "graph/slot_capture.h"

namespace tpu::compile {

/// What captures the operators of this thread: "call" (captured_call.h), "step", "replay", or nothing.
std::optional<std::string> capturing();

/// What the calling thread does from here to launch() becomes one node. Destroyed without launch(), it was not done.
class StepCapture {
 public:
  /// `origin` as SlotCapture takes it. Raises RuntimeError where this thread captures already.
  StepCapture(c10::DeviceIndex device, uint64_t origin);
  /// Ends the capture and launches what it took. `lasting`: tensors that the step made, and that its next call will
  /// find and write again. REQUIRES: first call, thread of the constructor.
  void launch(const std::vector<at::Tensor>& lasting);
  /// The program that was launched, as StableHLO of the device's platform; empty where there was nothing to do.
  std::string text(bool locations) const;

 private:
  std::optional<BackwardHere> backward_here_;
  std::optional<graph::SlotCapture> capture_;
  std::unique_ptr<graph::SlotGraph> graph_;
};

/// A graph that is captured once and replayed any number of times. Used by one thread at a time.
class ReplayGraph {
 public:
  ReplayGraph() = default;
  ~ReplayGraph();
  ReplayGraph(const ReplayGraph&) = delete;
  ReplayGraph& operator=(const ReplayGraph&) = delete;

  /// Captures what this thread does on the current device. Raises RuntimeError where it captures already, or this holds
  /// a graph.
  void capture_begin();
  /// Raises RuntimeError where something that was called cannot be captured; then there is no graph.
  void capture_end();
  bool captured() const { return captured_; }
  void replay();
  void reset();
  /// As StepCapture::text.
  std::string text(bool locations) const;

 private:
  struct Capturing {
    explicit Capturing(c10::DeviceIndex device);
    const BackwardHere backward_here;
    const std::thread::id thread = std::this_thread::get_id();
    graph::SlotCapture capture;
  };
  std::unique_ptr<Capturing> capturing_;
  bool captured_ = false;
  std::unique_ptr<graph::SlotGraph> graph_;  // null for a graph without effect
};

}  // namespace tpu::compile
