#pragma once
// StorageSlot: what a tensor's storage points to instead of memory. It owns the storage's current value;
// writing through any view makes a new value and stores it here. Threads: load and store are atomic, so a
// race between two writers of one tensor loses an update, as on any device, and nothing worse.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/pool.h"
#include "runtime/value.h"

namespace tpu::runtime {

class StorageSlot final : public Pooled<StorageSlot> {
 public:
  StorageSlot(ValueRef value, uint64_t address);
  ~StorageSlot();
  StorageSlot(const StorageSlot&) = delete;
  StorageSlot& operator=(const StorageSlot&) = delete;

  /// The live slot that starts at `address`, or nullptr. PyTorch rebuilds a storage from its data_ptr() in a
  /// few places (writing a storage to a file); looks through all live slots.
  static StorageSlot* find(uint64_t address);

  ValueRef load() const {
    lock();
    ValueRef copy = value_;
    unlock();
    return copy;
  }
  void store(ValueRef value) {
    lock();
    value_.swap(value);
    unlock();
  }
  /// The storage's data_ptr(): unique among live storages, never readable.
  uint64_t address() const { return address_; }

 private:
  void lock() const {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() const { busy_.clear(std::memory_order_release); }

  ValueRef value_;
  const uint64_t address_;
  StorageSlot* previous_ = nullptr;  // list of live slots
  StorageSlot* next_ = nullptr;
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

/// Reserves `bytes` of address space that nothing can be mapped at.
uint64_t reserve_address(size_t bytes);

}  // namespace tpu::runtime
