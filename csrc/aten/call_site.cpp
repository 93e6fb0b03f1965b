#include "aten/call_site.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13
#include <torch/csrc/autograd/node.h>
#endif

#include <array>
#include <atomic>

namespace tpu::aten {
namespace {

// Lines of the latest forward calls. Entries are overwritten after kEntries nodes, and two forward threads
// can meet in one: then a message names no line, or rarely the wrong one, and nothing else depends on it.
constexpr size_t kEntries = size_t{1} << 16;
struct Entry {
  std::atomic<uint64_t> sequence{~uint64_t{0}};
  std::atomic<const void*> code{nullptr};
  std::atomic<int32_t> instruction{0};
};

std::array<Entry, kEntries>& table() {
  static auto* const entries = new std::array<Entry, kEntries>;
  return *entries;
}

void remember(uint64_t sequence, const Location& location) {
  Entry& entry = table()[sequence % kEntries];
  entry.code.store(location.code, std::memory_order_relaxed);
  entry.instruction.store(location.instruction, std::memory_order_relaxed);
  entry.sequence.store(sequence, std::memory_order_release);
}

Location recall(uint64_t sequence) {
  const Entry& entry = table()[sequence % kEntries];
  if (entry.sequence.load(std::memory_order_acquire) != sequence) return {};
  return {entry.code.load(std::memory_order_relaxed), entry.instruction.load(std::memory_order_relaxed)};
}

}  // namespace

Location call_site() {
  if (const auto node = torch::autograd::get_current_node()) {
    const Location forward = recall(node->sequence_nr());
    if (forward.code != nullptr) return forward;
  }
  const Location here = capture_location();
  // Autograd took the number of this call's node just before it called us.
  const uint64_t next = at::sequence_number::peek();
  if (next > 0 && here.code != nullptr) remember(next - 1, here);
  return here;
}

}  // namespace tpu::aten
