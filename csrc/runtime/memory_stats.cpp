#include "runtime/memory_stats.h"

#include "base/error.h"

namespace tpu::runtime {

MemoryStats& memory_stats(int device) {
  static auto* const stats = new MemoryStats[kMaxDevices];  // leaked: values may outlive static destruction
  ensure(device >= 0 && device < kMaxDevices, "device index out of range");
  return stats[device];
}

}  // namespace tpu::runtime
