#include "runtime/task_queue.h"

#include <chrono>

#include "base/waiting.h"

namespace tpu::runtime {
namespace {

// The thread looks for work this many times before it sleeps: about 20 us, longer than the gap between two
// operator calls from Python, so that a stream of calls never pays for a wake-up.
constexpr int kSpins = 400;
// A full queue holds at least tens of milliseconds of work, so a producer may as well look again now and then.
constexpr std::chrono::milliseconds kRecheck{1};

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

TaskQueue::TaskQueue(size_t capacity) : capacity_(capacity), ring_(capacity), thread_([this] { loop(); }) {
  thread_.detach();
}

void TaskQueue::push(Task* task) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      const uint64_t number = pushed_.load(std::memory_order_relaxed);
      if (number - taken_.load(std::memory_order_acquire) < capacity_) {
        ring_[number % capacity_] = task;
        pushed_.store(number + 1, std::memory_order_release);
        if (sleeping_.load(std::memory_order_relaxed)) work_.notify_one();
        return;
      }
    }
    // Only when more threads than there is slack pass wait_for_room() at one time.
    std::this_thread::sleep_for(kRecheck);
  }
}

void TaskQueue::wait_for_room() {
  if (pushed() - taken_.load(std::memory_order_acquire) < capacity_ - capacity_ / 8) [[likely]]
    return;
  // Half empty before going on, so that a producer that outruns the device sleeps seldom.
  const WaitWord never;
  while (pushed() - taken_.load(std::memory_order_acquire) > capacity_ / 2) {
    never.wait_until(0, WaitWord::Clock::now() + kRecheck);
  }
}

// The thread takes tasks without the lock while there are any; producers order their ring slot before `pushed_`.
void TaskQueue::loop() {
  for (uint64_t number = 0;; ++number) {
    for (int i = 0; i < kSpins && pushed() == number; ++i) pause_cpu();
    if (pushed() == number) {
      std::unique_lock lock(mutex_);
      sleeping_.store(true, std::memory_order_relaxed);
      work_.wait(lock, [&] { return pushed() != number; });
      sleeping_.store(false, std::memory_order_relaxed);
    }
    Task* task = ring_[number % capacity_];
    taken_.store(number + 1, std::memory_order_release);
    task->run();
    task->finish();
    finished_.store(number + 1, std::memory_order_release);
  }
}

}  // namespace tpu::runtime
