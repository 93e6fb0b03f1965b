#pragma once
// What the fake plugin hands out. Every object counts itself in Control, so that tests find leaks and double
// frees of the layer above.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control.h"
#include "pjrt/c_api.h"

namespace fake_pjrt {

Control& control();

class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --count_; }

 private:
  std::atomic<int>& count_;
};

using Waiter = std::function<void(const Failure&)>;

// What an event and the thread that completes it share.
struct Promise {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;            // guarded by mutex
  Failure failure;              // guarded by mutex
  std::vector<Waiter> waiters;  // guarded by mutex

  void complete(const Failure& outcome);
};

/// Completes after `delay_ms`, at once for 0, with `failure`.
std::shared_ptr<Promise> promise_after(int delay_ms, const Failure& failure);

}  // namespace fake_pjrt

struct PJRT_Error : fake_pjrt::Counted {
  PJRT_Error(uint32_t error_code, std::string text)
      : Counted(fake_pjrt::control().errors), code(error_code), message(std::move(text)) {}
  const uint32_t code;
  const std::string message;
};

struct PJRT_DeviceDescription {
  int32_t id;
  std::string kind;
  std::string debug;
  PJRT_NamedValue core_count;
};

struct PJRT_Device {
  PJRT_DeviceDescription description;
};

struct PJRT_Client : fake_pjrt::Counted {
  PJRT_Client() : Counted(fake_pjrt::control().clients) {}
  std::vector<std::unique_ptr<PJRT_Device>> devices;
  std::vector<PJRT_Device*> device_pointers;
};

struct PJRT_Event : fake_pjrt::Counted {
  explicit PJRT_Event(std::shared_ptr<fake_pjrt::Promise> shared)
      : Counted(fake_pjrt::control().events), promise(std::move(shared)) {}
  const std::shared_ptr<fake_pjrt::Promise> promise;
};

struct PJRT_Buffer : fake_pjrt::Counted {
  PJRT_Buffer() : Counted(fake_pjrt::control().buffers) {}
  std::vector<int64_t> dims;
  std::vector<char> bytes;
  bool donated = false;
  PJRT_Device* device = nullptr;
  std::shared_ptr<fake_pjrt::Promise> ready;
};

struct PJRT_Executable : fake_pjrt::Counted {
  explicit PJRT_Executable(std::string text) : Counted(fake_pjrt::control().executables), program(std::move(text)) {}
  const std::string program;
};

struct PJRT_LoadedExecutable : fake_pjrt::Counted {
  explicit PJRT_LoadedExecutable(std::string text)
      : Counted(fake_pjrt::control().loaded_executables), program(std::move(text)) {}
  const std::string program;
};

struct PJRT_SerializedExecutable : fake_pjrt::Counted {
  explicit PJRT_SerializedExecutable(std::string text)
      : Counted(fake_pjrt::control().serialized), bytes(std::move(text)) {}
  const std::string bytes;
};

struct PJRT_TopologyDescription : fake_pjrt::Counted {
  PJRT_TopologyDescription() : Counted(fake_pjrt::control().topologies) {}
};
