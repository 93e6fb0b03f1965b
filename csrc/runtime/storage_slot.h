#pragma once
// StorageSlot: what a tensor's storage points to instead of memory. It owns the storage's current value;
// writing through any view makes a new value and stores it here. Threads: load and store are atomic, so a
// race between two writers of one tensor loses an update, as on any device, and nothing worse.
//
// A slot has owners, which keep its value: the storage, and captured graphs that read it. With the last owner goes the
// value. A Ref keeps only the slot itself, so that a captured graph can tell whether a tensor still exists.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/pool.h"
#include "runtime/ref.h"
#include "runtime/value.h"

namespace tpu::runtime {

class StorageSlot final : public RefCounted, public Pooled<StorageSlot> {
 public:
  /// Has one owner, whoever makes it.
  StorageSlot(ValueRef value, uint64_t address);
  ~StorageSlot();
  StorageSlot(const StorageSlot&) = delete;
  StorageSlot& operator=(const StorageSlot&) = delete;

  /// The live slot that starts at `address`, or nullptr. PyTorch rebuilds a storage from its data_ptr() in a
  /// few places (writing a storage to a file); looks through all live slots.
  static StorageSlot* find(uint64_t address);
  /// The live slot that holds `value`, or none; looks through all live slots.
  static Ref<StorageSlot> holding(const Value& value);
  /// How many slots this process has made.
  static uint64_t count();

  /// Adds an owner. REQUIRES: there is one.
  void own() { owners_.fetch_add(1, std::memory_order_relaxed); }
  void disown();
  bool owned() const { return owners_.load(std::memory_order_acquire) > 0; }
  /// Number of this slot among all that were ever made, from 1.
  uint64_t number() const { return number_; }

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

  void unlink();

  ValueRef value_;
  const uint64_t address_;
  std::atomic<uint32_t> owners_{1};
  uint64_t number_;
  bool linked_ = true;
  StorageSlot* previous_ = nullptr;  // list of live slots
  StorageSlot* next_ = nullptr;
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

/// Reserves `bytes` of address space that nothing can be mapped at.
uint64_t reserve_address(size_t bytes);

}  // namespace tpu::runtime
