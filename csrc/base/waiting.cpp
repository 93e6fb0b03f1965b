#include "base/waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <thread>

namespace tpu {
namespace {

constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);
// A result is often ready within a microsecond or two: shorter than falling asleep and being woken.
constexpr int kSpins = 64;

std::atomic<void (*)()> interrupt_check{nullptr};
// Threads asleep in any word of the process: while there are none, publish() makes no system call.
std::atomic<int> sleepers{0};

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");

// std::atomic::wait cannot be given a time-out, hence the system call.
void sleep_while(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds longest) {
  const timespec time{static_cast<time_t>(longest.count() / 1'000'000'000),
                      static_cast<long>(longest.count() % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
}

class Asleep {
 public:
  Asleep() { sleepers.fetch_add(1, std::memory_order_seq_cst); }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;
  ~Asleep() { sleepers.fetch_sub(1, std::memory_order_relaxed); }
};

}  // namespace

void set_interrupt_check(void (*check)()) { interrupt_check.store(check, std::memory_order_release); }

bool interruptible() {
  static thread_local const bool main_thread = getpid() == gettid();
  return main_thread && interrupt_check.load(std::memory_order_acquire) != nullptr;
}

void WaitWord::publish(uint32_t value) {
  // Sequentially consistent with the sleeper's count: either it sees the new value or we see the sleeper.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool WaitWord::wait_until(uint32_t value, Clock::time_point deadline) const {
  for (int i = 0; i < kSpins; ++i) {
    if (load() != value) return true;
    std::this_thread::yield();
  }
  for (;;) {
    {
      const Asleep counted;
      if (value_.load(std::memory_order_seq_cst) != value) return true;
      const auto now = Clock::now();
      if (now >= deadline) return false;
      sleep_while(value_, value, std::min<std::chrono::nanoseconds>(kSlice, deadline - now));
    }
    if (load() != value) return true;
    if (interruptible()) interrupt_check.load(std::memory_order_acquire)();
  }
}

}  // namespace tpu
