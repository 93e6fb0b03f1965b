#include "runtime/task_queue.h"

#include <chrono>

namespace tpu::runtime {
namespace {

// The thread looks for work this many times before it sleeps: about 20 us, longer than the gap between two
// operator calls from Python, so that a stream of calls never pays for a wake-up.
constexpr int kSpins = 400;
// Of several threads that wait for different tasks only the latest one's number is watched exactly; the
// others look again this often.
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
  std::unique_lock lock(mutex_);
  const uint64_t number = pushed_.load(std::memory_order_relaxed);
  if (number - taken_.load(std::memory_order_acquire) >= capacity_) {
    // Half empty before going on, so that a producer that outruns the device sleeps seldom.
    waiters_.fetch_add(1);
    done_.wait(lock, [&] { return number - taken_.load(std::memory_order_acquire) <= capacity_ / 2; });
    waiters_.fetch_sub(1);
  }
  ring_[number % capacity_] = task;
  pushed_.store(number + 1, std::memory_order_release);
  if (sleeping_.load(std::memory_order_relaxed)) work_.notify_one();
}

void TaskQueue::wait_for(uint64_t number) {
  for (int i = 0; i < kSpins; ++i) {
    if (finished() >= number) return;
    pause_cpu();
  }
  std::unique_lock lock(mutex_);
  wanted_.store(number);
  waiters_.fetch_add(1);
  while (!done_.wait_for(lock, kRecheck, [&] { return finished() >= number; })) {
  }
  waiters_.fetch_sub(1);
}

void TaskQueue::drain() { wait_for(pushed()); }

bool TaskQueue::drain_for(double seconds) {
  const uint64_t number = pushed();
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1);
  const bool all = done_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return finished() >= number; });
  waiters_.fetch_sub(1);
  return all;
}

// The thread takes tasks without the lock while there are any; producers order their ring slot before
// `pushed_`. Waiters are woken once per half queue or when it runs empty, not for every task.
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
    const bool idle = pushed() == number + 1;
    if (waiters_.load() > 0 && (idle || (number & 63) == 0 || number + 1 == wanted_.load())) {
      std::lock_guard lock(mutex_);
      done_.notify_all();
    }
  }
}

}  // namespace tpu::runtime
