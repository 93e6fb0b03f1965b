#pragma once
// Bytes held by live values, by device. Plugins do not all implement Device_MemoryStats (the CPU plugin
// does not), so the engine counts what it owns. Lock-free.

#include <atomic>
#include <cstdint>

namespace tpu::runtime {

inline constexpr int kMaxDevices = 64;

class MemoryStats {
 public:
  void add(int64_t bytes) {
    const int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (bytes <= 0) {
      freed_.fetch_add(-bytes, std::memory_order_relaxed);
      return;
    }
    allocated_.fetch_add(bytes, std::memory_order_relaxed);
    allocations_.fetch_add(1, std::memory_order_relaxed);
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  int64_t current() const { return current_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t allocated() const { return allocated_.load(std::memory_order_relaxed); }
  int64_t freed() const { return freed_.load(std::memory_order_relaxed); }
  int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }
  int64_t out_of_memory() const { return out_of_memory_.load(std::memory_order_relaxed); }
  void count_out_of_memory() { out_of_memory_.fetch_add(1, std::memory_order_relaxed); }
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }
  void reset_accumulated() {
    allocated_.store(0, std::memory_order_relaxed);
    freed_.store(0, std::memory_order_relaxed);
    allocations_.store(0, std::memory_order_relaxed);
    out_of_memory_.store(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> current_{0}, peak_{0}, allocated_{0}, freed_{0}, allocations_{0}, out_of_memory_{0};
};

MemoryStats& memory_stats(int device);

}  // namespace tpu::runtime
