#include "compile/slot_graph.h"

#include <c10/util/Exception.h>

#include "aten/call_site.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/generator.h"
#include "device/storage.h"
#include "graph/recorder.h"
#include "runtime/context.h"

namespace tpu::compile {

using graph::SlotCapture;

namespace {

void refuse_nested() {
  TORCH_CHECK(graph::Capture::current() == nullptr, "a capture begins on a thread that captures a graph already");
}

graph::RandomStream default_stream(c10::DeviceIndex device) {
  return *device::random_stream(device::default_generator(device));
}

std::string text_of(const graph::SlotGraph* graph, bool locations) {
  if (graph == nullptr) return "";
  return device::translate(
      [&] { return graph->text(graph::layout_policy(runtime::Context::get().client().platform_name()), locations); });
}

}  // namespace

std::optional<std::string> capturing() {
  if (graph::Capture::current() == nullptr) return std::nullopt;
  const SlotCapture* const slots = SlotCapture::current();
  if (slots == nullptr) return "call";
  return slots->use() == SlotCapture::Use::kOnce ? "step" : "replay";
}

// ---- once --------------------------------------------------------------------------------------------

StepCapture::StepCapture(c10::DeviceIndex device, uint64_t origin) {
  refuse_nested();
  backward_here_.emplace();
  capture_.emplace(device, SlotCapture::Use::kOnce, origin, default_stream(device));
}

void StepCapture::launch(const std::vector<at::Tensor>& lasting) {
  std::vector<runtime::StorageSlot*> slots;
  for (const at::Tensor& tensor : lasting) {
    if (tensor.device().type() == c10::DeviceType::PrivateUse1) slots.push_back(&device::slot_of(tensor));
  }
  device::translate([&] {
    graph_ = capture_->finish(slots);
    capture_.reset();
    backward_here_.reset();
    if (graph_ != nullptr) graph_->launch_as_captured(aten::call_site());
  });
}

std::string StepCapture::text(bool locations) const { return text_of(graph_.get(), locations); }

// ---- any number of times -----------------------------------------------------------------------------

ReplayGraph::Capturing::Capturing(c10::DeviceIndex device)
    : capture(device, SlotCapture::Use::kReplay, 0, default_stream(device)) {}

ReplayGraph::~ReplayGraph() {
  // The capture is known to the thread that began it, and to no other.
  if (capturing_ != nullptr && capturing_->thread != std::this_thread::get_id()) (void)capturing_.release();
}

void ReplayGraph::capture_begin() {
  TORCH_CHECK(!captured_, "this graph object holds a captured graph; reset() it, or make another one");
  refuse_nested();
  const c10::DeviceIndex device = device::current_device();
  device::translate([&] { graph::Recorder::of(device).flush("capture"); });
  capturing_ = std::make_unique<Capturing>(device);
}

void ReplayGraph::capture_end() {
  TORCH_CHECK(capturing_ != nullptr, "capture_end() without capture_begin()");
  TORCH_CHECK(capturing_->thread == std::this_thread::get_id(), "a capture ends on the thread that began it");
  const std::unique_ptr<Capturing> ended = std::move(capturing_);
  const std::string blocked = ended->capture.blocked();
  TORCH_CHECK(blocked.empty(), "the capture failed: ", blocked);
  device::translate([&] { graph_ = ended->capture.finish(); });
  captured_ = true;
}

void ReplayGraph::replay() {
  TORCH_CHECK(captured_, "replay() of a graph without a successful capture");
  if (graph_ == nullptr) return;
  device::translate([&] { graph_->launch(aten::call_site()); });
}

void ReplayGraph::reset() {
  TORCH_CHECK(capturing_ == nullptr, "reset() during a capture");
  graph_.reset();
  captured_ = false;
}

std::string ReplayGraph::text(bool locations) const { return text_of(graph_.get(), locations); }

}  // namespace tpu::compile
