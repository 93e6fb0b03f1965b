#include "runtime/storage_slot.h"

namespace tpu::runtime {
namespace {

// Addresses with bit 55 set and bit 63 clear belong to no user mapping on x86-64 (not canonical) or AArch64
// (kernel half), so reading one faults at once. They are handed out in order; the range lasts for 2^55
// bytes of allocations and then starts again, when its first storages are long gone.
constexpr uint64_t kFirst = uint64_t{1} << 55;
constexpr uint64_t kRange = uint64_t{1} << 55;
constexpr uint64_t kAlignment = 64;

}  // namespace

uint64_t reserve_address(size_t bytes) {
  static std::atomic<uint64_t> next{0};
  const uint64_t size = (bytes + kAlignment) / kAlignment * kAlignment;  // at least one unit, also for 0 bytes
  return kFirst + next.fetch_add(size, std::memory_order_relaxed) % kRange;
}

}  // namespace tpu::runtime
