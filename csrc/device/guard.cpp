// c10's device guard: current device, streams, events.
//
// All streams of a device share its one queue, so work of different streams is ordered more strongly than it
// needs to be: waiting for another stream or for an event is always satisfied. A stream is therefore a name:
// an id that is current or not.

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "device/device.h"
#include "device/dtypes.h"
#include "device/errors.h"
#include "graph/recorder.h"
#include "graph/slot_capture.h"
#include "runtime/memory_stats.h"

namespace tpu::device {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
using Clock = std::chrono::steady_clock;

thread_local DeviceIndex current = 0;
thread_local c10::StreamId current_streams[runtime::kMaxDevices] = {};

struct EventState {
  WaitWord done;
  Clock::time_point time;  // valid once done
};

struct Event {
  std::shared_ptr<EventState> recorded;  // of the latest record()
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  DeviceType type() const override { return DeviceType::PrivateUse1; }
  Device exchangeDevice(Device device) const override {
    const Device old = getDevice();
    setDevice(device);
    return old;
  }
  Device getDevice() const override { return {DeviceType::PrivateUse1, current}; }
  void setDevice(Device device) const override {
    TORCH_INTERNAL_ASSERT(device.is_privateuseone());
    if (device.index() >= 0 && device.index() != current) set_current_device(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  Stream getStream(Device device) const override {
    const DeviceIndex index = device.index() < 0 ? current : device.index();
    return Stream(Stream::UNSAFE, {DeviceType::PrivateUse1, index}, current_streams[index]);
  }
  Stream getDefaultStream(Device device) const override {
    const DeviceIndex index = device.index() < 0 ? current : device.index();
    return Stream(Stream::DEFAULT, {DeviceType::PrivateUse1, index});
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream getNewStream(Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    const DeviceIndex index = device.index() < 0 ? current : device.index();
    return Stream(Stream::UNSAFE, {DeviceType::PrivateUse1, index}, next++);
  }
  Stream exchangeStream(Stream stream) const override {
    const DeviceIndex index = stream.device_index();
    const Stream old(Stream::UNSAFE, {DeviceType::PrivateUse1, index}, current_streams[index]);
    current_streams[index] = stream.id();
    return old;
  }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability capability;
    auto& types = capability.capability_data.supported_scalar_types;
#define TPU_SET_CAPABILITY(_, name) types.has_##name = supports(c10::ScalarType::name);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(TPU_SET_CAPABILITY)
#undef TPU_SET_CAPABILITY
    return capability;
  }
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13
  // A capture is of a thread, whatever stream is current there.
  bool isStreamCapturing(const Stream& stream) const override {
    const graph::SlotCapture* const capture = graph::SlotCapture::current();
    return capture != nullptr && capture->device() == stream.device_index();
  }
#endif
  bool queryStream(const Stream& stream) const override {
    return translate([&] {
      graph::Recorder& recorder = graph::Recorder::of(stream.device_index());
      recorder.flush("stream query");
      return runtime::Context::get().queue(stream.device_index()).idle();
    });
  }
  void synchronizeStream(const Stream& stream) const override { synchronizeDevice(stream.device_index()); }
  void synchronizeDevice(const DeviceIndex index) const override {
    translate([&] { graph::Recorder::of(resolve(index)).synchronize(); });
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    auto state = std::make_shared<EventState>();
    static_cast<Event*>(*event)->recorded = state;
    translate([&] {
      graph::Recorder::of(stream.device_index()).when_done([state] {
        state->time = Clock::now();
        state->done.publish(1);
      });
    });
  }
  void block(void*, const Stream&) const override {}  // the queue already runs in this order
  bool queryEvent(void* event) const override {
    const auto* known = static_cast<Event*>(event);
    if (known == nullptr || known->recorded == nullptr) return true;
    return known->recorded->done.load() == 1;
  }
  void synchronizeEvent(void* event) const override {
    const auto* known = static_cast<Event*>(event);
    if (known == nullptr || known->recorded == nullptr) return;
    const std::shared_ptr<EventState> state = known->recorded;
    state->done.wait_while(0);
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "Both events must be recorded before calculating elapsed time.");
    const auto a = static_cast<Event*>(first)->recorded;
    const auto b = static_cast<Event*>(second)->recorded;
    TORCH_CHECK(a && b, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(queryEvent(first) && queryEvent(second),
                "Both events must be completed before calculating elapsed time.");
    return std::chrono::duration<double, std::milli>(b->time - a->time).count();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

DeviceIndex current_device() { return current; }

DeviceIndex device_count() noexcept {
  try {
    return static_cast<DeviceIndex>(runtime::Context::device_count());
  } catch (const std::exception&) {
    return 0;
  }
}

void set_current_device(DeviceIndex index) { current = resolve(index); }

DeviceIndex resolve(DeviceIndex index) {
  if (index < 0) return current;
  if (index == 0) return index;
  const int count = translate([] { return runtime::Context::device_count(); });
  TORCH_CHECK(index < count, "tpu:", static_cast<int>(index), ": invalid device ordinal, ",
              count == 1 ? "there is 1 device" : c10::str("there are ", count, " devices"));
  return index;
}

size_t total_memory(DeviceIndex index) {
  const pjrt::Device& device = runtime::Context::get().device(resolve(index));
  const auto limit = device.attributes().find("device_memory_bytes_limit");
  if (limit != device.attributes().end()) return std::strtoull(limit->second.c_str(), nullptr, 10);
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace tpu::device
