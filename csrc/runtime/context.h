#pragma once
// The process's PJRT client and what belongs to it: devices, one task queue per device, the compile cache.
// Created at first device use, never destroyed: plugins do not survive being torn down while values and
// threads still exist at interpreter exit. Thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "pjrt/client.h"
#include "runtime/compile_cache.h"
#include "runtime/provider.h"
#include "runtime/task_queue.h"

namespace tpu::runtime {

class Context {
 public:
  /// Creates the client if there is none. Throws Error{kUnavailable} with what to do; the same error again
  /// after a time-out, since the abandoned attempt still runs. Throws in a forked child.
  static Context& get();
  /// True once the client exists.
  static bool initialized();
  /// Number of devices: from the options for the CPU plugin, else creates the client.
  static int device_count();
  /// True when a plugin is found (it is not loaded).
  static bool available();
  /// Called in a forked child: threads and locks of the parent's engine are gone there.
  static void mark_forked_child();
  static bool in_bad_fork();

  const pjrt::Client& client() const { return *client_; }
  const PluginChoice& choice() const { return choice_; }
  int devices() const { return static_cast<int>(client_->devices().size()); }
  const pjrt::Device& device(int index) const { return client_->devices()[static_cast<size_t>(index)]; }
  TaskQueue& queue(int index) { return *queues_[static_cast<size_t>(index)]; }
  CompileCache& cache() { return *cache_; }
  /// The host can read device memory directly (CPU plugins).
  bool host_readable() const { return host_readable_; }

 private:
  explicit Context(PluginChoice choice);

  PluginChoice choice_;
  std::unique_ptr<pjrt::Client> client_;
  std::vector<std::unique_ptr<TaskQueue>> queues_;
  std::unique_ptr<CompileCache> cache_;
  bool host_readable_ = false;
};

}  // namespace tpu::runtime
