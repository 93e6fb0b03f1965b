// What ATen asks a PrivateUse1 backend for, and pinned host memory.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include <map>
#include <mutex>

#include "device/device.h"
#include "device/errors.h"
#include "device/generator.h"
#include "device/storage.h"
#include "runtime/context.h"

namespace tpu::device {
namespace {

// Transfers copy through memory that any host allocation can serve, so "pinned" is a mark on ordinary
// aligned memory: is_pinned() is true for it, and copies from it need no staging.
class HostAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    auto* block = new Block{std::move(memory)};
    void* data = block->memory.get();
    {
      std::lock_guard lock(mutex());
      if (data != nullptr) ranges()[data] = bytes;
    }
    return {data, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14
  void empty_cache(c10::MempoolId_t = {0, 0}) override {}
#else
  void empty_cache() override {}
#endif
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  static bool owns(const void* data) {
    std::lock_guard lock(mutex());
    auto after = ranges().upper_bound(data);
    if (after == ranges().begin()) return false;
    --after;
    return static_cast<const char*>(data) < static_cast<const char*>(after->first) + after->second;
  }

 private:
  struct Block {
    c10::DataPtr memory;
  };
  static std::mutex& mutex() {
    static auto* const instance = new std::mutex;
    return *instance;
  }
  static std::map<const void*, size_t>& ranges() {
    static auto* const instance = new std::map<const void*, size_t>;
    return *instance;
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      std::lock_guard lock(mutex());
      ranges().erase(block->memory.get());
    }
    delete block;
  }
};

HostAllocator& host_allocator() {
  static auto* const instance = new HostAllocator;
  return *instance;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return runtime::Context::available(); }
  void init() const override {
    translate([] { runtime::Context::get(); });
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return runtime::Context::initialized(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex old = current_device();
    if (index >= 0) set_current_device(index);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* data) const override { return HostAllocator::owns(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }
  at::Device getDeviceFromPtr(void*) const override { return {c10::DeviceType::PrivateUse1, current_device()}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(resolve(index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(resolve(index)); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::setHostAllocator(at::DeviceType::PrivateUse1, &host_allocator());
  return true;
}();

}  // namespace
}  // namespace tpu::device
