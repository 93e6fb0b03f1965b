#include "runtime/storage_slot.h"

namespace tpu::runtime {
namespace {

// Addresses with bit 55 set and bit 63 clear belong to no user mapping on x86-64 (not canonical) or AArch64
// (kernel half), so reading one faults at once. They are handed out in order; the range lasts for 2^55
// bytes of allocations and then starts again, when its first storages are long gone.
constexpr uint64_t kFirst = uint64_t{1} << 55;
constexpr uint64_t kRange = uint64_t{1} << 55;
constexpr uint64_t kAlignment = 64;

std::atomic_flag list_busy = ATOMIC_FLAG_INIT;
StorageSlot* first_slot = nullptr;
uint64_t slots_made = 0;

// Held for a few instructions, or for one walk of the list.
class ListLock {
 public:
  ListLock() {
    while (list_busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~ListLock() { list_busy.clear(std::memory_order_release); }
};

}  // namespace

StorageSlot::StorageSlot(ValueRef value, uint64_t address) : value_(std::move(value)), address_(address) {
  retain();
  const ListLock lock;
  number_ = ++slots_made;
  next_ = first_slot;
  if (next_ != nullptr) next_->previous_ = this;
  first_slot = this;
}

StorageSlot::~StorageSlot() {
  if (linked_) unlink();
}

void StorageSlot::unlink() {
  const ListLock lock;
  linked_ = false;
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : first_slot) = next_;
}

void StorageSlot::disown() {
  if (owners_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  unlink();
  if (use_count() > 1) store(ValueRef());
  if (release()) delete this;
}

uint64_t StorageSlot::count() {
  const ListLock lock;
  return slots_made;
}

StorageSlot* StorageSlot::find(uint64_t address) {
  const ListLock lock;
  StorageSlot* slot = first_slot;
  while (slot != nullptr && slot->address_ != address) slot = slot->next_;
  return slot;
}

Ref<StorageSlot> StorageSlot::holding(const Value& value) {
  const ListLock lock;
  for (StorageSlot* slot = first_slot; slot != nullptr; slot = slot->next_) {
    slot->lock();
    const bool found = slot->value_.get() == &value;
    slot->unlock();
    // A linked slot has not dropped its owners' reference yet.
    if (found) return Ref<StorageSlot>(slot);
  }
  return {};
}

uint64_t reserve_address(size_t bytes) {
  static std::atomic<uint64_t> next{0};
  const uint64_t size = (bytes + kAlignment) / kAlignment * kAlignment;  // at least one unit, also for 0 bytes
  return kFirst + next.fetch_add(size, std::memory_order_relaxed) % kRange;
}

}  // namespace tpu::runtime
